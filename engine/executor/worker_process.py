"""The main of a worker process, one rank: `python -m vllm_obs.engine.executor.worker_process`."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.child_recording import begin_recording, record_ready
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.executor.commands import (
    LOADED,
    CallFailed,
    Command,
    Executed,
    ExecuteModel,
    InitializeCache,
    PeersMissing,
    Phases,
    Profile,
    Profiled,
    Reply,
    Sampled,
    SampleTokens,
    decode,
    encode,
)
from vllm_obs.engine.executor.plan_stream import PlanReader
from vllm_obs.engine.executor.shm_queue import ShmQueueReader, ShmQueueWriter
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError
from vllm_obs.engine.executor.step_record import step_record, told_by
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.group_setup import ALONE_SETUP, GroupSetup, OutOfStepError, PeerLostError
from vllm_obs.engine.log_file import log_to_file
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_captures import CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_kinds import PROCESS_KINDS, worker_kinds
from vllm_obs.engine.startup_phases import StartupPhases, startup_part
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.engine.worker.limits import record_limits
from vllm_obs.engine.worker.memory_parts import memory_parts
from vllm_obs.engine.worker.placement import bind_cores, placement
from vllm_obs.engine.worker.torch_import import import_torch
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import WORKER_RING_BYTES
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder

IDLE_WAIT_SECONDS = 60.0
CAPTURE_WAIT_SECONDS = 0.2
"""How often it is seen whether a profile has been written."""
REPLY_TIMEOUT_SECONDS = 10.0
PEER_GRACE_SECONDS = 5.0
"""How long a rank that has lost another lives on: its owner will have seen which, and end the others, before."""
NOTHING_RAN = "there is no plan to sample"
"""A plan that could not be sent is not sampled in the place of the one before it."""

_logger = logging.getLogger(__name__)


class RankWorker(Protocol):
    """What this process drives: the real Worker, or a test's."""

    def load_model(self) -> None:
        """Read the weights."""

    def kv_block_bytes(self) -> int:
        """Bytes of one block."""

    def available_kv_bytes(self) -> int:
        """Bytes the cache may take."""

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the cache."""

    def warm_up(self) -> None:
        """Run once."""

    def execute_model(self, plan: StepPlan) -> None:
        """Run the forward pass of a plan."""

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """Sample the plan that ran last."""


@dataclass(frozen=True)
class WorkerSetup:
    """What the executor hands to one rank: the run's configuration, two queues, and where it meets the others.

    `first_rank` is the first that reads these plans: that of this host.
    """

    config: VllmConfig
    rank: int
    plans: QueueHandle
    replies: QueueHandle
    first_rank: int = 0
    group: GroupSetup = ALONE_SETUP


MakeWorker = Callable[[WorkerSetup, Callable[[], None]], RankWorker]
"""From a rank's setup, and what to call after each layer."""


def make_worker(setup: WorkerSetup, on_layer: Callable[[], None]) -> RankWorker:
    """The real worker, which loads torch; a synthetic one does not."""
    config, rank = setup.config, setup.rank
    if config.model.is_synthetic:
        from vllm_obs.engine.synthetic.build import make_synthetic_worker

        return make_synthetic_worker(config, rank, on_layer)
    if config.model.device == "cpu":
        bind_cores(placement(config, rank))
    import_torch(config.model.device)
    with startup_part("import worker"):
        from vllm_obs.engine.worker.worker import Worker

    return Worker(config, rank, on_layer, setup.group)


def run_worker(owner: Owner, make_worker: MakeWorker = make_worker) -> None:
    """Load the model, say LOADED, and serve commands until the owner orders the end, which needs no ceremony."""
    setup: WorkerSetup = from_wire(WorkerSetup, owner.configuration)
    log_to_file(setup.config.run_dir, owner.title)
    recorder, startup = begin_recording(owner, setup.config, WORKER_RING_BYTES)
    maybe_fault("worker_start")
    worker = make_worker(setup, recorder.advance)
    loading = "make worker" if setup.config.model.is_synthetic else "import torch"
    phases: Phases = [(loading, startup.end(loading))]
    MemorySamples(owner.title, recorder).added(loading, "libraries")
    recorder.doing(Activity.LOADING_MODEL)
    worker.load_model()
    phases.append(("load weights", startup.end("load weights")))
    rank = WorkerRank(worker, setup, RankRecord(owner, recorder, startup))
    owner.say(LOADED, [worker.kv_block_bytes(), worker.available_kv_bytes(), phases])
    rank.run()


@dataclass(frozen=True)
class RankRecord:
    """Whom a rank tells what it does: its owner, and its recorder."""

    owner: Owner
    recorder: ProcessRecorder
    startup: StartupPhases


class WorkerRank:
    """Takes commands in order, runs them on the worker, and replies (the output rank; others when one failed)."""

    def __init__(self, worker: RankWorker, setup: WorkerSetup, record: RankRecord) -> None:
        self._worker = worker
        self._owner = record.owner
        self._startup = record.startup
        self._recorder = record.recorder
        self._rank = setup.rank
        self._sizes = (0, 0)
        self._is_output_rank = setup.rank == setup.config.parallel.output_rank
        self._plans = ShmQueueReader(setup.plans, setup.rank - setup.first_rank)
        self._heard_plans = PlanReader()
        self._replies = ShmQueueWriter(setup.replies)
        self._encoder = FrameEncoder()
        self._failure = NOTHING_RAN
        site = CaptureSite(record.owner.title, os.getpid(), setup.rank)
        self._captures = ProcessCaptures(site, record.recorder, {**PROCESS_KINDS, **worker_kinds(worker)})

    def run(self) -> None:
        """Serve for as long as the process lives. ShmQueueError or WireError when the queue is broken."""
        while True:
            self._recorder.doing(Activity.WAITING)
            frames = self._plans.read(CAPTURE_WAIT_SECONDS if self._captures.is_under_way else IDLE_WAIT_SECONDS)
            self._recorder.heartbeat(time.monotonic_ns())
            if frames is not None:
                self._serve(frames)
            self._captures.collect()

    def _serve(self, frames: list[Buffer]) -> None:
        command = self._heard_plans.heard(cast(Command, decode(frames)))
        if isinstance(command, InitializeCache):
            try:
                self._initialize(command.num_blocks)
            except PeerLostError:
                time.sleep(PEER_GRACE_SECONDS)  # until the other's end was seen, which this one's follows from
                raise
        elif isinstance(command, ExecuteModel | SampleTokens | Profile):
            reply = self._attempt(command)
            if self._is_output_rank or isinstance(reply, CallFailed):
                self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        """Answer; where the answer is more than can be sent, with that. The step fails then, and not this rank."""
        try:
            self._replies.write(encode(self._encoder, reply), REPLY_TIMEOUT_SECONDS)
        except (WireError, ShmQueueError) as error:
            if isinstance(error, ShmQueueError) and not error.is_refusal:
                raise
            _logger.error("an answer cannot be sent: %s", error)
            failure = CallFailed(_call_id(reply), str(error))
            self._replies.write(encode(self._encoder, failure), REPLY_TIMEOUT_SECONDS)

    def _initialize(self, num_blocks: int) -> None:
        self._startup.end("wait for the other ranks")
        self._recorder.doing(Activity.SIZING_CACHE)
        self._worker.initialize_cache(num_blocks)
        phases: Phases = [("kv cache", self._startup.end("kv cache"))]
        self._recorder.doing(Activity.WARMING_UP)
        self._worker.warm_up()
        with startup_part("record memory"):
            parts = memory_parts(self._worker)
            MemorySamples(self._owner.title, self._recorder).placed("warm-up", *parts)
        with startup_part("measure limits"):
            record_limits(self._worker, self._rank, parts.ranges.get("weights", []), self._recorder)
        phases.append(("warm-up", self._startup.end("warm-up")))
        record_ready(self._owner, self._recorder)
        self._owner.say(READY, phases)

    def _attempt(self, command: Command) -> Reply:
        try:
            return self._call(command)
        except (MemoryError, OutOfStepError):
            raise
        except PeerLostError as error:
            self._outlive_others(_call_id(command), error)
            raise
        except Exception as error:
            _logger.exception("a call failed")
            self._failure = f"{type(error).__name__}: {error}"
            return CallFailed(_call_id(command), self._failure)

    def _outlive_others(self, call_id: int, error: PeerLostError) -> None:
        """Whoever died or stands still is found out before this rank's own end, which only follows from it."""
        _logger.error("%s", error)
        self._recorder.doing(Activity.WAITING)
        self._reply(PeersMissing(call_id, error.waited_for, str(error)))
        time.sleep(PEER_GRACE_SECONDS)

    def _call(self, command: Command) -> Reply:
        if isinstance(command, ExecuteModel):
            self._failure = ""
            maybe_fault("worker_step")
            self._sizes = (command.plan.num_tokens, command.plan.num_rows)
            self._recorder.begin_step(command.plan.step)
            self._recorder.doing(Activity.EXECUTING)
            self._worker.execute_model(command.plan)
            self._recorder.advance()
            return Executed(command.call_id)
        if isinstance(command, Profile):
            return Profiled(command.call_id, self._captures.obey(command.order, command.is_look))
        assert isinstance(command, SampleTokens)
        if self._failure:
            return CallFailed(command.call_id, self._failure)
        self._failure = NOTHING_RAN
        self._recorder.doing(Activity.SAMPLING)
        output = self._worker.sample_tokens(command.masks)
        self._recorder.advance()
        self._record_step(output)
        return Sampled(command.call_id, output)

    def _record_step(self, output: ModelRunnerOutput) -> None:
        """Each rank records its own part, in its own ring."""
        for moments in output.moments:
            if moments.rank == self._rank:
                self._recorder.record(step_record(output.step, moments, self._sizes, told_by(self._worker)))


def _call_id(command: Any) -> int:
    call_id: int = command.call_id
    return call_id


if __name__ == "__main__":
    run_child(run_worker)
