"""Simulated deployments as the Observer would read them, whole or with a process killed in the middle."""

from collections.abc import Iterable, Sequence

from synthetic_run import Facts

from vllm_obs.engine.synthetic.deployment import simulate_deployment
from vllm_obs.engine.synthetic.simulation import SimulationOptions, simulate
from vllm_obs.telemetry.record_moments import moment_of, shifted
from vllm_obs.telemetry.records import (
    HttpRequestEnded,
    OutputsTaken,
    ProcessExited,
    Record,
    RequestEnded,
    RequestSubmitted,
    RequestTaken,
)
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, Source, SourceGone, View

KILLED = -9

Stream = list[tuple[Source, Fact]]


def deployment_facts(
    num_engines: int,
    num_api_servers: int,
    num_ranks: int = 2,
    seconds: float = 10.0,
    regimes: Sequence[str] = ("max_num_seqs",),
) -> Facts:
    """All records of such a deployment under these regimes, in order of time."""
    options = SimulationOptions(num_ranks=num_ranks, num_engines=num_engines)
    found = simulate_deployment(regimes, num_api_servers, 1, seconds, options)
    return [(Source(*source), record) for source, record in found]


def told(facts: Iterable[tuple[Source, Fact]], *views: View, state: RunState | None = None) -> RunState:
    """The state after all of them."""
    state = state or RunState()
    for view in views:
        state.add_view(view)
    newest = 0
    for source, fact in facts:
        state.apply(source, fact)
        if isinstance(fact, tuple) and not isinstance(fact, SourceGone) and fact._fields[0] != "num":
            newest = max(newest, moment_of(fact))  # type: ignore[arg-type]
    state.tick(newest)
    return state


def without_engine(facts: Facts, label: str, share: float) -> Stream:
    """The engine with this label is killed after such a share of the records; its sequences end with an error."""
    place = int(len(facts) * share)
    owned = {record.request_id: source.engine for source, record in facts if isinstance(record, RequestTaken)}
    ours = {request_id for request_id, engine in owned.items() if engine == label}
    found: Stream = list(facts[:place])
    at = max(moment_of(record) for _, record in facts[:place])
    core = next(
        source for source, record in facts if source.role.startswith("EngineCore") and source.engine == label
    )
    owner = next(source for source, _ in facts if source.role in ("Launcher", "APIServer_0"))
    found.append((owner, ProcessExited(core.role, core.pid, KILLED, at)))
    found += [
        (source, _failed(record, at)) for source, record in _open(facts[:place]) if record.request_id in ours
    ]
    found += [
        (source, _http_failed(record, at)) for source, record in _open(facts[:place]) if record.request_id in ours
    ]
    found += [
        (source, SourceGone()) for source in dict.fromkeys(source for source, _ in facts) if source.engine == label
    ]
    found += [(source, record) for source, record in facts[place:] if not _is_of(source, record, label, ours)]
    return found


def next_life(facts: Facts, label: str, num_engines: int, gap_ns: int) -> Facts:
    """What the next process of an engine records, so long after all else, with requests of its own."""
    options = SimulationOptions(engine_index=int(label), num_engines=num_engines, life=1)
    own = [(Source(*source), record) for source, record in simulate(("max_num_seqs",), 7, 5.0, options)]
    by = (
        max(moment_of(record) for _, record in facts)
        + gap_ns
        - min(moment_of(record) for _, record in own if moment_of(record))
    )
    return [(source, _moved(record, by)) for source, record in own]


def with_another_server(facts: Facts, role: str, share: float) -> Stream:
    """An API server is killed after such a share of the records; another takes the requests that come then."""
    place = int(len(facts) * share)
    server = next(source for source, _ in facts if source.role == role)
    another = server._replace(pid=server.pid + 500, generation=server.generation + 500)
    lost = {record.request_id for source, record in _open(facts[:place]) if source == server}
    begun = {
        record.http_id
        for source, record in facts[:place]
        if isinstance(record, RequestSubmitted) and source == server
    }
    found: Stream = [*facts[:place], (server, SourceGone())]
    for source, record in facts[place:]:
        if source != server:
            found.append((source, record))
        elif not _names(record, lost) and not (isinstance(record, HttpRequestEnded) and record.http_id in begun):
            found.append((another, record))
    return found


def _open(facts: Facts) -> list[tuple[Source, RequestSubmitted]]:
    """Sequences that were submitted and have not ended, with their API servers."""
    found = {
        record.request_id: (source, record) for source, record in facts if isinstance(record, RequestSubmitted)
    }
    for _, record in facts:
        if isinstance(record, RequestEnded):
            found.pop(record.request_id, None)
    return list(found.values())


def _failed(submitted: RequestSubmitted, at: int) -> RequestEnded:
    return RequestEnded(
        submitted.request_id,
        submitted.client_index,
        "error",
        "engine_dead",
        submitted.num_prompt_tokens,
        0,
        0,
        0,
        0,
        0,
        at,
    )


def _http_failed(submitted: RequestSubmitted, at: int) -> HttpRequestEnded:
    names = (submitted.http_id, submitted.client_index, submitted.external_id)
    return HttpRequestEnded(
        *names, "/v1/completions", "POST", 500, "engine_dead", "", submitted.received_at, at, at, 0, 0
    )


def _is_of(source: Source, record: Record, label: str, ours: set[str]) -> bool:
    if source.engine == label or (isinstance(record, OutputsTaken) and str(record.engine_index) == label):
        return True
    if isinstance(record, HttpRequestEnded):
        return f"{record.http_id}-0" in ours
    return _names(record, ours)


def _names(record: Record, request_ids: set[str]) -> bool:
    return getattr(record, "request_id", "") in request_ids


def _moved(record: Record, by: int) -> Record:
    moved = shifted(record, by)
    return moved._replace(submitted_at=moved.submitted_at + by) if isinstance(moved, RequestTaken) else moved
