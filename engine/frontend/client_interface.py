"""What the front ends need of an engine's client; a test may bring its own."""

from collections.abc import Sequence
from typing import Any, Protocol

from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishReason


class AsyncEngineClient(Protocol):
    """The engines of a server seen from an event loop, as DPLBAsyncMPClient."""

    @property
    def engines(self) -> Sequence[EngineFacts]:
        """The facts of the engines that are there; where none is, of those that were last."""

    @property
    def dead_cause(self) -> str | None:
        """Why there is no engine, None while there is one."""

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Send one sequence."""

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        """Tell the core to end sequences."""

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the core."""

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs; EngineLostError when an engine died, EngineDeadError when none will come."""

    def give_up(self, cause: str) -> None:
        """Take no more outputs of the engines there are: whoever reads them has failed at it."""

    def let_in(self, client: Any) -> None:
        """An engine that is ready takes the place of the one before it."""

    def shutdown(self) -> Any:
        """End the engines."""


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
