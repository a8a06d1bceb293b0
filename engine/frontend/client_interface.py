"""What the front ends need of an engine's client; a test may bring its own."""

from collections.abc import Sequence
from typing import Any, Protocol

from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishReason


class AsyncEngineClient(Protocol):
    """The engine seen from an event loop, as AsyncMPClient."""

    facts: EngineFacts

    @property
    def dead_cause(self) -> str | None:
        """Why the engine is gone, None while it lives."""

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Send one sequence."""

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        """Tell the core to end sequences."""

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the core."""

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs; EngineDeadError when there will be none."""

    def shutdown(self) -> Any:
        """End the engine."""


class EngineClient(Protocol):
    """The engine seen from plain code, as InprocClient and SyncMPClient."""

    facts: EngineFacts

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send one sequence."""

    def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        """Tell the core to end sequences."""

    def get_output(self) -> EngineCoreOutputs | None:
        """The next step's outputs, None when a step had nothing to say."""

    def shutdown(self) -> Any:
        """End the engine."""
