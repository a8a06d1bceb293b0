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
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.child_recording import begin_recording, record_ready
from vllm_obs.engine.codec import write_fields
from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.core_io import CoreAddress, CoreInput, CoreOutput, Inbox, Signal
from vllm_obs.engine.core_proc import Core, EngineCoreProc
from vllm_obs.engine.executor.factory import make_executor
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.launch import engine_settings
from vllm_obs.engine.log_file import log_to_file
from vllm_obs.engine.messages import AbortRequests, EngineFacts, FinishReason, RequestType
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
    engine_index, clients = engine_settings(owner.configuration)
    start_seconds = (time.monotonic_ns() - owner.spawned_at) / 1e9
    address = CoreAddress(engine_index, config.generation, os.getpid(), clients)
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
    _start_threads(owner, address, inbox, loop)
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


def _start_threads(owner: Owner, address: CoreAddress, inbox: Inbox, loop: EngineCoreProc) -> None:
    bodies = {"engine input": CoreInput(address, inbox).run}
    for index, ((_, endpoint), outbox) in enumerate(zip(address.clients, loop.outboxes, strict=True)):
        bodies[f"engine output {index}"] = CoreOutput(endpoint, outbox, partial(_end, address, inbox, index)).run
    for name, body in bodies.items():
        threading.Thread(target=guarded(owner, name, body), name=name, daemon=True).start()


def _end(address: CoreAddress, inbox: Inbox, client_index: int, request_ids: list[str]) -> None:
    inbox.put(AbortRequests(client_index, address.generation, request_ids, int(FinishReason.ERROR)))


def _complete(facts: EngineFacts, address: CoreAddress, start_seconds: float) -> EngineFacts:
    phases = [("start process", start_seconds), *facts.phases]
    return facts._replace(engine_index=address.engine_index, pid=address.pid, phases=phases)


def _freeze_garbage() -> None:
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    run_child(run_engine)
