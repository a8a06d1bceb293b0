"""Arrival: what comes with a prompt beside its text and its parameters."""

from dataclasses import dataclass

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.telemetry.records import RequestSubmitted

MAX_SALT_CHARS = 1024
MAX_PRIORITY = 1_000_000


@dataclass(frozen=True)
class Arrival:
    """What comes with a prompt: whose it is, its order and cache domain, and the moments so far.

    Moments are `time.monotonic_ns()`; a stage that did not take place has the moment before it. `num_prompts` is
    how many prompts the client's request has, all with the same parameters. `http_id` is ours of that request,
    `external_id` the client's label for it; `trace_parent` and `account` are as in `RequestSubmitted`.
    """

    external_id: str = ""
    http_id: str = ""
    operation: str = "text_completion"
    is_streamed: bool = False
    model: str = ""
    trace_parent: str = ""
    priority: int = 0
    cache_salt: str | None = None
    received_at: int = 0
    parsed_at: int = 0
    rendered_at: int = 0
    num_sequences: int = 1
    num_prompts: int = 1
    account: str = ""

    def submitted(self, sequence: EngineCoreRequest, tokenized_at: int) -> RequestSubmitted:
        """The fact that this sequence of the request goes to the core, at its `submitted_at`."""
        sampling = sequence.sampling
        return RequestSubmitted(
            request_id=sequence.request_id,
            client_index=sequence.client_index,
            http_id=self.http_id,
            external_id=self.external_id,
            sequence_index=sampling.sequence_index,
            num_sequences=self.num_sequences,
            num_prompts=self.num_prompts,
            operation=self.operation,
            is_streamed=self.is_streamed,
            model=self.model,
            trace_parent=self.trace_parent,
            received_at=self.received_at,
            parsed_at=self.parsed_at,
            rendered_at=self.rendered_at,
            tokenized_at=tokenized_at,
            submitted_at=sequence.submitted_at,
            num_prompt_tokens=len(sequence.prompt_token_ids),
            max_tokens=sampling.max_tokens,
            priority=sequence.priority,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            account=self.account,
        )

    def check(self) -> None:
        """RequestError for a priority or a cache domain out of bounds."""
        priority, salt = self.priority, self.cache_salt
        if type(priority) is not int or abs(priority) > MAX_PRIORITY:
            raise RequestError(
                f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {shown(priority)}.",
                "priority",
            )
        if salt is not None and not (
            isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_CHARS and salt.isprintable()
        ):
            raise RequestError(f"cache_salt must be 1 to {MAX_SALT_CHARS} printable characters.", "cache_salt")
