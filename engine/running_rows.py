"""RunningRows: a plan's rows of sequences that ran before, column by column."""

from vllm_obs.engine.request import NO_TOKEN, Request

_NO_BLOCKS: list[int] = []
"""One list for all the rows that get no block: a plan is not changed once it is made."""


class RunningRows:
    """The columns of a step in the making, parallel to `requests`.

    Of a row that decodes and needs no block the planner writes what differs; `fill_decodes` adds the rest for all
    of these at once. `chunks` are those whose tokens are not all computed with this step, and how far it comes.
    """

    __slots__ = ("chunks", "last_token_ids", "new_blocks", "num_computed", "num_tokens", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.new_blocks: list[list[int]] = []
        self.num_computed: list[int] = []
        self.last_token_ids: list[int] = []
        self.num_tokens: list[int] = []
        self.chunks: list[tuple[Request, int]] = []

    def fill_decodes(self) -> None:
        """The columns that are the same for all rows that only decode, up to the last row."""
        num_more = len(self.requests) - len(self.num_tokens)
        self.num_tokens += [1] * num_more
        self.new_blocks += [_NO_BLOCKS] * num_more

    def add(self, request: Request, num_new: int, new_blocks: list[int] | None) -> None:
        """A row of any kind; the request's counts advance as if it had run."""
        num_computed = request.num_computed_tokens
        num_end = num_computed + num_new
        self.fill_decodes()
        self.requests.append(request)
        self.new_blocks.append(new_blocks or _NO_BLOCKS)
        self.num_computed.append(num_computed)
        self.num_tokens.append(num_new)
        is_told = request.num_sent_tokens <= num_computed < request.num_tokens
        self.last_token_ids.append(request.token_ids[num_computed] if is_told else NO_TOKEN)
        request.num_computed_tokens = num_end
        if num_end == request.num_planned_tokens:
            request.num_planned_tokens = num_end + 1
        else:
            self.chunks.append((request, num_end))
