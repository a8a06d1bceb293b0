"""Segments: steps of a sampled sequence that follow one another, each with links to them and a link from them."""

from functools import lru_cache

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.otlp_encoding import encode_attributes, encode_context, encode_link
from vllm_obs.telemetry.records import StepPlanned
from vllm_obs.telemetry.span import MAX_LINKS, Attributes

LINK_ATTRIBUTES = 4
"""The number of a link's attributes in OTLP's schema."""


class Segment:
    """Steps of a sequence that follow one another in one stage, with links to them."""

    __slots__ = (
        "first_at",
        "first_step",
        "last_at",
        "last_step",
        "link",
        "links",
        "num_steps",
        "span_id",
        "stage",
    )

    def __init__(self, trace_id: int, segment_id: int, stage: str, step: int) -> None:
        self.span_id = segment_id
        self.stage = stage
        self.first_step = self.last_step = step
        self.num_steps = 0
        self.first_at = self.last_at = 0
        self.links: list[bytes] = []
        self.link = _Link(encode_context(trace_id, segment_id), stage)


class _Link:
    """The link from a step to a segment. What it says seldom changes from one step to the next."""

    __slots__ = ("_context", "_encoded", "_num_blocks", "_num_tokens", "_stage")

    def __init__(self, context: bytes, stage: str) -> None:
        self._context = context
        self._stage = stage
        self._num_tokens = self._num_blocks = -1
        self._encoded = b""

    def saying(self, num_tokens: int, num_blocks: int) -> bytes:
        """Encoded, with the row's numbers of tokens and of new blocks."""
        if num_tokens != self._num_tokens or num_blocks != self._num_blocks:
            self._num_tokens, self._num_blocks = num_tokens, num_blocks
            self._encoded = encode_link(self._context, _row_attributes(num_tokens, self._stage, num_blocks))
        return self._encoded


class Company:
    """Sampled rows of an engine that decode side by side, step after step: what they share is kept once.

    Their segments are behind until `settle`, which whoever looks at one must call before. `places` are those of
    the rows in the plan.
    """

    def __init__(self, planned: StepPlanned, segments: list[Segment], places: list[int]) -> None:
        self._ids = planned.request_ids
        self._num_tokens = planned.num_scheduled_tokens
        self._segments = segments
        self._places = places
        self._links: list[bytes] = []
        self._own_links: list[bytes] = []
        self._last_step, self._last_at = planned.step, 0
        self._num_left = MAX_LINKS - max(segment.num_steps for segment in segments)
        self._is_decoding = all(segment.stage == "decode" for segment in segments)

    def goes_on(self, planned: StepPlanned, stride: int) -> bool:
        """Whether the step is one more of the same rows with as many tokens each: of the very same lists."""
        return (
            planned.request_ids is self._ids
            and planned.num_scheduled_tokens is self._num_tokens
            and self._is_decoding
            and len(self._own_links) < self._num_left
            and planned.step <= self._last_step + stride
        )

    def add(self, planned: StepPlanned, sampled_at: int, own_link: bytes) -> list[bytes]:
        """The step ran; its links to the rows' segments, not to be changed."""
        self._own_links.append(own_link)
        self._last_step, self._last_at = planned.step, sampled_at
        if not self._links:
            rows = zip(self._segments, self._places, strict=True)
            self._links = [segment.link.saying(self._num_tokens[place], 0) for segment, place in rows]
        blocks = planned.num_new_blocks
        if not any(blocks):
            return self._links
        links = self._links.copy()
        for number, place in enumerate(self._places):
            if blocks[place]:
                links[number] = self._segments[number].link.saying(self._num_tokens[place], blocks[place])
        return links

    def settle(self) -> None:
        """Bring the segments up to date."""
        if self._own_links:
            for segment in self._segments:
                segment.last_step, segment.last_at = self._last_step, self._last_at
                segment.num_steps += len(self._own_links)
                segment.links += self._own_links
            self._num_left -= len(self._own_links)
            self._own_links = []


@lru_cache(maxsize=4096)
def _row_attributes(num_tokens: int, stage: str, num_blocks: int) -> bytes:
    values: Attributes = {
        span_names.NUM_SCHEDULED_TOKENS: num_tokens,
        span_names.PHASE: stage,
        span_names.NUM_NEW_BLOCKS: num_blocks,
    }
    return encode_attributes(LINK_ATTRIBUTES, values)
