"""The main of an EngineCore process: `python -m vllm_obs.engine.process`."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial

from vllm_obs.engine.child import unbidden_ends
from vllm_obs.engine.child_main import Owner, guarded, run_child
from vllm_obs.engine.child_pipe import CLIENT, READY
from vllm_obs.engine.child_recording import begin_recording, record_ready
from vllm_obs.engine.codec import write_fields
from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.core_io import (
    ClientReplaced,
    CoreAddress,
    CoreInput,
    CoreOutput,
    Inbox,
    Outbox,
    Signal,
)
from vllm_obs.engine.core_proc import Core, EngineCoreProc
from vllm_obs.engine.engine_process import client_endpoints
from vllm_obs.engine.executor.factory import make_executor
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.head_start import use_head_start
from vllm_obs.engine.log_file import log_to_file
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, EngineFacts, FinishReason, RequestType
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import ENGINE_RING_BYTES
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessExited

ReportFailure = Callable[[str], None]
MakeCore = Callable[[VllmConfig, ProcessRecorder, ReportFailure], Core]

GRAMMARS_SECONDS = 10.0
"""How long READY waits for what grammars need, which is there long before the model is."""


IMPORTS_SECONDS = 0.25
"""So long the loading has the interpreter to itself, which would else take turns with what grammars need."""


def make_core(
    config: VllmConfig,
    recorder: ProcessRecorder,
    report_failure: ReportFailure,
    grammars: GrammarBook | None = None,
) -> EngineCore:
    """The real EngineCore over the configured executor, whose failures outside a step are reported."""
    executor = make_executor(config, recorder)
    executor.on_failure(report_failure)
    return EngineCore(config, executor, recorder, grammars=grammars)


def make_serving_core(config: VllmConfig, recorder: ProcessRecorder, report_failure: ReportFailure) -> EngineCore:
    """The same, with what every grammar needs made beside the loading: later it would hold up streams."""
    if not config.model.has_grammars:
        return make_core(config, recorder, report_failure)
    grammars, is_prepared = GrammarBook(config.model), threading.Event()

    def prepare() -> None:
        time.sleep(IMPORTS_SECONDS)
        wait([grammars.prepare()], GRAMMARS_SECONDS)
        is_prepared.set()

    threading.Thread(target=prepare, name="grammars", daemon=True).start()
    core = make_core(config, recorder, report_failure, grammars)
    is_prepared.wait(IMPORTS_SECONDS + GRAMMARS_SECONDS)
    return core


def run_engine(owner: Owner, make_core: MakeCore = make_serving_core) -> None:
    """Build the core, say READY with its facts, and serve until the owner orders the end.

    An error goes up at once, without a shutdown: the workers end with this process.
    """
    config: VllmConfig = from_wire(VllmConfig, owner.configuration["config"])
    start_seconds = (time.monotonic_ns() - owner.spawned_at) / 1e9
    clients = client_endpoints(owner.configuration)
    address = CoreAddress(config.engine_index, config.generation, os.getpid(), clients)
    log_to_file(config.run_dir, owner.title)
    recorder, phases = begin_recording(owner, config, ENGINE_RING_BYTES)
    maybe_fault("engine_start")
    inbox = Inbox()
    with _ends_recorded(recorder):
        core = make_core(config, recorder, lambda cause: inbox.put(Signal(RequestType.EXECUTOR_FAILED, cause)))
    core.on_grammar(lambda: inbox.put(Signal(RequestType.WAKEUP, "")))
    loop = EngineCoreProc(core, address, inbox, recorder)
    phases.end("make core")
    owner.on_stop(loop.stop)
    CoreThreads(owner, address, inbox).start(loop)
    phases.end("start threads")
    _freeze_garbage()
    phases.end("freeze garbage")
    record_ready(owner, recorder)
    owner.say(READY, write_fields(_complete(core.facts, address, start_seconds)))
    with _ends_recorded(recorder):
        loop.run()
    recorder.doing(Activity.STOPPING)
    core.shutdown()
    recorder.close()


@contextmanager
def _ends_recorded(recorder: ProcessRecorder) -> Iterator[None]:
    """Where an error is about to end this process, record first which of its children had ended before."""
    try:
        yield
    except BaseException:
        for end in unbidden_ends():
            recorder.record(ProcessExited(*end))
        raise


class CoreThreads:
    """The threads at an engine's sockets: one that takes messages, and one for each client's outputs."""

    def __init__(self, owner: Owner, address: CoreAddress, inbox: Inbox) -> None:
        self._owner = owner
        self._address = address
        self._inbox = inbox
        self._input = CoreInput(address, inbox)
        self._outputs: dict[int, CoreOutput] = {}
        self._senders: dict[int, Callable[[EngineCoreOutputs], bool]] = {}

    def start(self, loop: EngineCoreProc) -> None:
        """Start them, and let other clients in from now on when the owner orders it."""
        self._run("engine input", self._input.run)
        self._senders = loop.send_now
        for index, ((_, endpoint), outbox) in enumerate(zip(self._address.clients, loop.outboxes, strict=True)):
            self._send_to(index, endpoint, outbox)
        loop.on_replaced = self._replace
        self._owner.on_order(CLIENT, lambda payload: self._input.replace(ClientReplaced(*payload)))

    def _replace(self, replaced: ClientReplaced, outbox: Outbox) -> None:
        self._outputs[replaced.client_index].end()
        self._send_to(replaced.client_index, replaced.outputs, outbox)

    def _send_to(self, client_index: int, endpoint: str, outbox: Outbox) -> None:
        output = self._outputs[client_index] = CoreOutput(endpoint, outbox, partial(self._end, client_index))
        self._run(f"engine output {client_index}", output.run)
        self._senders[client_index] = output.send_now

    def _run(self, name: str, body: Callable[[], None]) -> None:
        threading.Thread(target=guarded(self._owner, name, body), name=name, daemon=True).start()

    def _end(self, client_index: int, request_ids: list[str]) -> None:
        reason = int(FinishReason.ERROR)
        self._inbox.put(AbortRequests(client_index, self._address.generation, request_ids, reason))


def _complete(facts: EngineFacts, address: CoreAddress, start_seconds: float) -> EngineFacts:
    phases = [("start process", start_seconds), *facts.phases]
    return facts._replace(engine_index=address.engine_index, pid=address.pid, phases=phases)


def _freeze_garbage() -> None:
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    use_head_start()
    run_child(run_engine)
