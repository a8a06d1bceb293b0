"""The asynchronous front of the engine: one object a server asks for tokens."""

from collections.abc import AsyncIterator
from typing import Any

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.chat_template import ChatTemplate
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import Recorder


class RequestStream:
    """An accepted request: iterate it for its deltas (sequences interleaved); `aclose()` aborts what still runs."""

    request_id: str
    """The engine's own id; the sequences are `{request_id}-{index}`."""

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> SequenceDelta:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Abort the sequences that still run; harmless when none does, and when called again."""
        raise NotImplementedError


class AsyncLLM:
    """Signatures first; the body follows."""

    def __init__(self, config: VllmConfig, client: Any, tokenizer: Tokenizer, recorder: Recorder) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin reading the engine's outputs; call it on the event loop."""

    async def submit(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        received_at: int | None = None,
        parsed_at: int | None = None,
        rendered_at: int | None = None,
        external_id: str = "",
        stream: bool = True,
    ) -> RequestStream:
        """Validate, tokenise, register and send; RequestError (400) or EngineDeadError before anything runs.

        With `stream` False the request gives one delta a sequence, at its end (cheaper). Always `aclose()` it.
        """
        raise NotImplementedError

    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str,
        **options: Any,
    ) -> AsyncIterator[SequenceDelta]:
        """`submit` and iterate, as an async generator: closing or cancelling it aborts. Same options as `submit`.

        Once accepted, failures come as a delta with finish_reason `error` (reason `engine_dead` when it died).
        """
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        """Abort every request submitted under that id; their streams end with finish_reason `abort`."""

    async def encode_chat(
        self, template: ChatTemplate, messages: list[dict[str, Any]], **options: Any
    ) -> list[int]:
        """`ChatTemplate.encode` with the same limits; long chats off the event loop."""
        raise NotImplementedError

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokenise a raw prompt; long texts off the event loop. RequestError when it cannot fit the context."""
        raise NotImplementedError

    @property
    def num_in_flight(self) -> int:
        """Sequences submitted and not ended."""
        raise NotImplementedError

    @property
    def dead_cause(self) -> str | None:
        """Why the engine is gone, None while it lives."""
        raise NotImplementedError

    async def wait_dead(self) -> str:
        """Return the cause when the engine (or the task that reads its outputs) has died."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Fail what is open (`shutting_down`), stop the client."""
