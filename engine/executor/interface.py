"""The one interface between EngineCore and whatever runs the model."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder


class KVCapacity(NamedTuple):
    """How the KV cache was sized: blocks, bytes of one block over all layers, and the memory it could take.

    `bound` says in words what decided.
    """

    num_blocks: int
    block_bytes: int
    available_bytes: int
    bound: str = ""


class Executor(Protocol):
    """Runs plans on one worker or many. Both step calls return at once; their futures fail with the cause."""

    def initialize(self) -> KVCapacity:
        """Load the weights, size and allocate the KV cache, warm up. Raises ConfigError or StartupError."""

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Start the forward pass of a plan; done when it ran (or failed)."""

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Sample the rows of the plan executed last, under grammar masks if any."""

    def startup_phases(self) -> list[tuple[str, float]]:
        """(name, seconds) of what `initialize` did, in order."""

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` from any thread when a rank dies outside a step."""

    def profile(self, order: ProfileOrder | None, is_look: bool = False) -> Future[bool]:
        """Begin a profile in every rank; without an order end it, or (`is_look`) only look.

        The answer is whether one is under way. Between steps only. A rank that cannot take it records why.
        """

    def shutdown(self) -> None:
        """End every worker within seconds; idempotent."""
