"""LateAnswer: the answer of a step that is all under way, fetched when somebody asks for it."""

from collections.abc import Callable
from concurrent.futures import Future

from vllm_obs.engine.executor.done_future import DoneFuture
from vllm_obs.engine.plan import ModelRunnerOutput


class LateAnswer(Future[ModelRunnerOutput]):
    """Not done before it was asked for. `fetch` is called once, in the thread that asks, and may wait.

    For whoever asks for the result itself, as a DoneFuture is.
    """

    def __init__(self, fetch: Callable[[], ModelRunnerOutput]) -> None:
        self._fetch = fetch
        self._fetched: DoneFuture[ModelRunnerOutput] | None = None

    def __repr__(self) -> str:
        return f"<LateAnswer {self._fetched or 'not asked for'}>"

    def done(self) -> bool:
        """Whether it was fetched."""
        return self._fetched is not None

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """The answer, or the error of fetching it. The watchdog, not `timeout`, has an eye on that wait."""
        return self._settled().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, if fetching the answer raises one."""
        return self._settled().exception()

    def _settled(self) -> DoneFuture[ModelRunnerOutput]:
        if self._fetched is None:
            self._fetched = DoneFuture(self._fetch)
        return self._fetched
