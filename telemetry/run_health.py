"""How a run is, in a word and a sentence, judged by its engines, its processes' deaths and its API servers."""

import contextlib
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.process_table import ProcessFacts
from vllm_obs.telemetry.records import EngineGivenUp, EngineRestarted, IncidentFiled, StallBegun
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.run_snapshot import AWAKE
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.watchdog_log import Stall

DEATH_SECONDS = 300.0
"""So long a death is told of in a run that lives on; in a recording always."""
MAX_DEATHS = 4
API_ROLE = "APIServer"
STOPPED = "T"
"""The kernel's letter for a process that was stopped by a signal."""
NS = 1e9


class Health(NamedTuple):
    """A word from a closed set, and a sentence."""

    word: str
    says: str


class Death(NamedTuple):
    """A process that did not end in order. `died_at` (monotonic ns) is 0 where nobody saw it."""

    role: str
    pid: int
    exit_code: int | None
    died_at: int
    says: str


def health_of(
    observer: Observer, now: int, run_dir: Path | None = None, stalls: Sequence[StallBegun] = ()
) -> Health:
    """How the run is. `run_dir` is where the rings of a live run's API servers are, `stalls` those that last."""
    deaths = " ".join(death.says for death in deaths_of(observer, now))
    if not observer.is_live:
        caveat = f" But {observer.caveat}." if observer.caveat else ""
        end = f"At its end: {_moving(observer.state).says}" if observer.state.engines else ""
        # The newest death first: an old one is not what the recording is about.
        deaths = " ".join(death.says for death in reversed(deaths_of(observer, now)))
        head = f"A recording of run {observer.run}; time stands still.{caveat}"
        return Health("recording", " ".join(word for word in (head, end, deaths) if word))
    state = observer.state
    activities = server_activities(run_dir) if run_dir is not None else set()
    is_served = not activities.isdisjoint((Activity.SERVING, Activity.BROKEN))
    if Activity.STOPPING in activities and not is_served:
        return Health("draining", f"The server ends: no request is let in. {_counts(state)}")
    if Activity.RESTARTING in activities and not is_served:
        return Health("restarting", f"The engine died, and another is being started. {deaths}".strip())
    if not state.engines:
        if state.past_engines:
            return Health("engine_dead", f"The engine has ended and no other has started. {deaths}".strip())
        return Health("starting", "No engine has started yet.")
    if stalls:
        return Health("stalled", " ".join(_stall(stall, now) for stall in stalls))
    if down := engines_down(state):
        words = _down(state, down, given_up_engines(observer))
        return Health("degraded", f"{words} {_counts(state)} {deaths}".strip())
    if Activity.BROKEN in activities and Activity.SERVING not in activities:
        says = f"The model gave no numbers in its last answers: no request is let in. {_counts(state)}"
        return Health("broken", says)
    return _moving(state)


def with_incident(health: Health, last: IncidentFiled, stalls: Iterable[Stall], now: int) -> Health:
    """What was said, and the last incident; of a stall whether it is over, and not twice what it says."""
    seen = (stall for stall in stalls if stall.begun.noticed_at == last.happened_at)
    stall = next((stall for stall in seen if stall.begun.pid == last.pid), None)
    if stall is not None and not stall.ended_at and health.word == "stalled":
        return health._replace(says=f"{health.says} Incident: {last.incident}.")
    says = _past_stall(stall, now) if stall is not None and stall.ended_at else last.says
    return health._replace(says=f"{health.says} Last incident ({last.incident}): {says}")


def deaths_of(observer: Observer, now: int) -> list[Death]:
    """The last processes that did not end in order, newest last; only recent ones of a run that lives."""
    deaths = [death for process in observer.state.processes.all() if (death := _death(observer, process, now))]
    if observer.is_live:
        deaths = [death for death in deaths if now - death.died_at < DEATH_SECONDS * NS]
    return sorted(deaths, key=lambda death: death.died_at)[-MAX_DEATHS:]


def engines_down(state: RunState) -> list[str]:
    """The labels of engines that died while others go on, and that none has taken the place of yet."""
    if not state.engines:
        return []
    last = {engine.label: engine.source for engine in state.past_engines if engine.label not in state.engines}
    found = {label: state.processes.get(source.role, source.pid) for label, source in last.items()}
    return sorted(label for label, process in found.items() if process is None or not process.was_told)


def given_up_engines(observer: Observer) -> dict[str, EngineGivenUp]:
    """The engines that nobody starts again for now, by label: they have died too often."""
    found: dict[str, EngineGivenUp] = {}
    for _, record in observer.facts:
        if isinstance(record, EngineGivenUp):
            found[record.engine] = record
        elif isinstance(record, EngineRestarted):
            found.pop(record.engine, None)
    return found


def rest_words(given_up: EngineGivenUp) -> str:
    """When it is tried again."""
    seconds = given_up.rest_seconds
    return f"it is tried again {seconds / 60:g} minutes after that" if seconds else "it is not tried again"


def server_activities(run_dir: Path) -> set[Activity]:
    """What the API servers that live do, as their rings' headers say."""
    found: set[Activity] = set()
    for path in run_dir.glob(f"{API_ROLE}_*.ring"):
        with contextlib.suppress(RingError, OSError), RingReader(path) as reader:
            if reader.is_writer_alive():
                found.add(reader.header().activity)
    return found


def _moving(state: RunState) -> Health:
    paused = [label for label in sorted(state.engines) if state.engines[label].state != AWAKE]
    if paused:
        work = ", ".join(f"engine {label} with {_work(state.engines[label])}" for label in paused)
        return Health("paused", f"Paused by order: {work}.")
    if any(engine.described is None for engine in state.engines.values()):
        return Health("starting", "The engine is loading.")
    if not any(engine.num_running or engine.num_waiting for engine in state.engines.values()):
        return Health("idle", "Ready; nothing is under way.")
    return Health("ok", _counts(state))


def _down(state: RunState, down: Sequence[str], given_up: Mapping[str, EngineGivenUp]) -> str:
    """Which engines are gone, which of them for longer, and how many go on."""
    names = f"Engine {down[0]} is" if len(down) == 1 else f"Engines {', '.join(down)} are"
    words = f"{names} gone, and {len(state.engines)} of {len(state.engines) + len(down)} go on."
    for label in down:
        if label in given_up:
            words += f" Engine {label} has died too often and is given up: {rest_words(given_up[label])}."
    return words


def _counts(state: RunState) -> str:
    num_running = sum(engine.num_running for engine in state.engines.values())
    num_waiting = sum(engine.num_waiting for engine in state.engines.values())
    return f"{num_running} running, {num_waiting} waiting."


def _death(observer: Observer, process: ProcessFacts, now: int) -> Death | None:
    """None for one that lives, or ended in order as far as is known."""
    code, role, pid = process.exit_code, process.role, process.pid
    if process.was_told:
        return None
    if code:
        when = f"{max(0, now - process.exited_at) / NS:.1f} s {'ago' if observer.is_live else 'before the end'}"
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return Death(role, pid, code, process.exited_at, f"{role} (pid {pid}) {how} {when}.")
    if code is None and process.is_gone and (num_cut := _num_cut_off(observer.state, process)):
        requests = "1 request" if num_cut == 1 else f"{num_cut} requests"
        return Death(role, pid, None, 0, f"{role} (pid {pid}) was gone before {requests} had ended.")
    return None


def _num_cut_off(state: RunState, process: ProcessFacts) -> int:
    """How many sequences of an API server never ended."""
    if not process.role.startswith(API_ROLE):
        return 0
    return sum(ledger.is_abandoned and ledger.api_generation == process.generation for ledger in state.ended)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stall(stall: StallBegun, now: int) -> str:
    return f"{stall.says} It has stood still for {max(0, now - stall.stuck_at) / NS:.0f} s."


def _past_stall(stall: Stall, now: int) -> str:
    """In words that nobody takes for one that lasts."""
    begun, ended_at = stall
    seconds, ago = (ended_at - begun.stuck_at) / NS, max(0, now - ended_at) / NS
    did = f"held engine {begun.engine} up" if begun.engine else "stood still"
    how = ", stopped by a signal" if begun.process_state == STOPPED else ""
    return f"{begun.role} (pid {begun.pid}) {did} for {seconds:.1f} s{how}, and that ended {ago:.0f} s ago."


def _work(engine: EngineState) -> str:
    return f"{engine.num_running} running and {engine.num_waiting} waiting"
