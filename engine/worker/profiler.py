"""OperatorCapture: one rank's operators over some steps, taken in the step loop and written by a thread."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vllm_obs.engine.kernels.cpu.program import LABEL_FIELD, Kernel, KernelWatch, Records, Times
from vllm_obs.engine.kernels.triton.launch_work import LaunchWork
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan, WorkerMoments
from vllm_obs.engine.profile_captures import CaptureSite
from vllm_obs.engine.profile_order import CaptureEnd, ProfileOrder
from vllm_obs.engine.worker.profiler_launches import LaunchingModel, rows_of, with_work
from vllm_obs.engine.worker.profiler_step import CapturedStep, Program
from vllm_obs.engine.worker.profiler_torch import TorchCycle, TorchEvent
from vllm_obs.engine.worker.profiler_trace import TraceSite
from vllm_obs.engine.worker.profiler_writer import Captured, ProfileWriter

logger = logging.getLogger(__name__)

MAX_EVENTS = 300_000
"""Of all steps together, some 60 MB; the capture ends there."""
_ROWS_FIELD = 7
"""How many rows (of attention: pieces) a call works on; norms say it one field before."""

BY_STEPS, BY_SECONDS, BY_ORDER, BY_EVENTS = "steps", "seconds", "order", "events"
"""What ended a capture."""


@runtime_checkable
class WatchedModel(Protocol):
    """A model whose kernels torch's profiler does not see; it tells a watch of them."""

    def watch_kernels(self, watch: KernelWatch | None) -> None:
        """Tell this watch of every kernel call from now on; None ends it."""


class OperatorCapture:
    """A capture of a worker. `start`, `stop` and the hooks of a step are called from the thread that runs steps.

    Only the bound in seconds is kept by a timer's thread, for an idle worker has no steps; it leaves a step that
    is under way to its end.
    """

    def __init__(self, order: ProfileOrder, site: CaptureSite, model: object, device: str) -> None:
        self.end: CaptureEnd | None = None
        self.is_over = False
        self._order = order
        self._site = site
        self._model = model if isinstance(model, WatchedModel) else None
        self._launching = model if isinstance(model, LaunchingModel) else None
        self._device = device
        self._cycle = TorchCycle(device, order.options)
        self._lock = threading.Lock()
        self._timer = threading.Timer(order.seconds, self._finish_after_step, (BY_SECONDS,))
        self._timer.daemon = True
        self._ended_by = self._failure = ""
        self._is_in_step = False
        self._num_to_skip = order.delay_steps
        self._num_events = 0
        self._plan: StepPlan | None = None
        self._programs: list[Program] = []
        self._launches: list[LaunchWork] = []
        self._steps: list[CapturedStep] = []
        self._begun_at = self._ended_at = 0

    def start(self) -> None:
        """Capture the steps from now on."""
        self._cycle.begin()  # the first in a process takes longest, and no step is under way
        self._cycle.end()
        self._begun_at = time.monotonic_ns()
        self._timer.start()

    def stop(self) -> None:
        """Capture no further step; what there is is written meanwhile."""
        self._finish_after_step(BY_ORDER)

    def begin_step(self, plan: StepPlan) -> None:
        """A plan is about to run."""
        if plan.num_rows and self._enter_step():
            self._plan, self._programs, self._launches = plan, [], []
            self._safely(self._watch)

    def end_step(self, output: ModelRunnerOutput) -> None:
        """The plan has been sampled."""
        if self._is_in_step:
            self._safely(lambda: self._keep(output.moments[-1], self._unwatch()))
            self._exit_step()

    def drop_step(self) -> None:
        """The plan failed; nothing is kept of it."""
        if self._is_in_step:
            self._safely(self._unwatch)
            self._exit_step()

    def _safely(self, act: Callable[[], object]) -> None:
        """A profile may fail, the step may not."""
        try:
            act()
        except Exception as error:
            logger.exception("the profile %s is given up", self._order.profile)
            self._failure = f"{type(error).__name__} while a step was captured"

    def program_ran(self, records: Records, times: Times) -> None:
        """Keep what the kernels of one program took."""
        rows = _num_rows(records) if "shapes" in self._order.options else None
        self._programs.append(Program(records[:, LABEL_FIELD].copy(), times, rows))

    def _enter_step(self) -> bool:
        """Whether this step is captured."""
        with self._lock:
            if self.is_over:
                return False
            if self._num_to_skip:
                self._num_to_skip -= 1
                return False
            self._is_in_step = True
        return True

    def _exit_step(self) -> None:
        with self._lock:
            self._is_in_step = False
        if self._failure or self._ended_by:
            self._finish(self._ended_by)
        elif len(self._steps) >= self._order.steps:
            self._finish(BY_STEPS)
        elif self._num_events >= MAX_EVENTS:
            self._finish(BY_EVENTS)

    def _watch(self) -> None:
        if self._model is not None:
            self._model.watch_kernels(self)
        if self._launching is not None:
            self._launching.watch_launches(self._launches.append)
        self._cycle.begin()

    def _unwatch(self) -> list[TorchEvent]:
        if self._model is not None:
            self._model.watch_kernels(None)
        if self._launching is not None:
            self._launching.watch_launches(None)
        return self._cycle.end()

    def _keep(self, moments: WorkerMoments, events: list[TorchEvent]) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        if self._launches:
            events = with_work(events, self._launches, rows_of(plan))
        step = CapturedStep(plan.step, plan.num_rows, plan.num_tokens, moments, self._programs, events)
        self._num_events += len(events) + sum(len(program.labels) for program in step.programs)
        self._steps.append(step)

    def _finish_after_step(self, cause: str) -> None:
        """Finish now, or at the end of the step that is under way."""
        with self._lock:
            if self._is_in_step:
                self._ended_by = self._ended_by or cause
                return
        self._finish(cause)

    def _finish(self, cause: str) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
        self._timer.cancel()
        self._ended_by = cause
        self._ended_at = time.monotonic_ns()
        self._num_steps = len(self._steps)
        if self._failure:
            self._written([], self._failure)
            return
        site = TraceSite(self._site.role, self._site.pid, "steps", threading.main_thread().native_id or 0)
        writer = ProfileWriter(Path(self._order.directory), site, self._written)
        writer.start(Captured(self._steps, self._facts()))

    def _written(self, files: list[str], error: str) -> None:
        now = time.monotonic_ns()
        self.end = CaptureEnd(self._num_steps, 0, self._ended_at, now, files, error)

    def _facts(self) -> dict[str, Any]:
        order, site = self._order, self._site
        return {
            "profile": order.profile,
            "kind": order.kind,
            "role": site.role,
            "pid": site.pid,
            "rank": site.rank,
            "device": self._device,
            "begun_at": self._begun_at,
            "ended_at": self._ended_at,
            "ended_by": self._ended_by,
            "clock": "monotonic",
            "options": list(order.options),
        }


def _num_rows(records: Records) -> Records:
    is_norm = records[:, 0] == Kernel.NORM
    return np.where(is_norm, records[:, _ROWS_FIELD - 1], records[:, _ROWS_FIELD])
