"""What a verdict says before any advice: that the engine is dead or replaced, that the server ends or hangs."""

from collections.abc import Sequence
from pathlib import Path

from vllm_obs.telemetry.explain_words import times
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.process_roles import engine_of_role
from vllm_obs.telemetry.process_table import ProcessFacts
from vllm_obs.telemetry.records import EngineRestarted, StallBegun
from vllm_obs.telemetry.run_health import (
    API_ROLE,
    STOPPED,
    Death,
    deaths_of,
    engines_down,
    given_up_engines,
    health_of,
    rest_words,
)
from vllm_obs.telemetry.verdict_window import Finding

NS = 1e9
_INCIDENT_HELP = "`vllm-obs incident show`: what it died of, in which step, and who was open"
_LIMITS_USELESS = "any limit: nothing is computed"
_HANGS_USELESS = "engine limits: requests do not come as far as the engine"


def state_findings(
    observer: Observer, now: int, run_dir: Path | None = None, stalls: Sequence[StallBegun] = ()
) -> list[Finding]:
    """What holds at `now` (monotonic ns) whatever the window; of a recording that its engine died for good.

    `run_dir` is that of a live run, `stalls` are those that last.
    """
    if not observer.is_live:
        return _given_up(observer, now)
    health = health_of(observer, now, run_dir, stalls)
    found = [_hanging(stall, now) for stall in stalls if not stall.engine][:1]
    if health.word == "draining":
        return [*(_given_up(observer, now) or [_draining(observer)]), *found]
    if health.word == "restarting":
        return [_restarting(observer, now), *found]
    if health.word == "engine_dead":
        return [_dead(observer, now), *found]
    down = engines_down(observer.state)
    return [_down(observer, now, label) for label in down[:1]] + found


def _restarting(observer: Observer, now: int) -> Finding:
    says = (
        f"The engine died and another is being started{_how(observer, now)}. Until it is ready new requests get "
        "503 with Retry-After."
    )
    return _severe("restarting", says, _evidence(observer, now))


def _dead(observer: Observer, now: int) -> Finding:
    says = (
        f"The engine is dead{_how(observer, now)}. Another is started in its place, or the server ends where "
        "--engine-restarts allows no more."
    )
    return _severe("engine_dead", says, _evidence(observer, now))


def _down(observer: Observer, now: int, label: str) -> Finding:
    """Engines are gone while others go on; told is how the first of them ended."""
    deaths = [death for death in deaths_of(observer, now) if engine_of_role(death.role) == label]
    how = f": {deaths[-1].says.removesuffix('.')}" if deaths else ""
    down, up = engines_down(observer.state), sorted(observer.state.engines)
    num_all = len(down) + len(up)
    given_up = given_up_engines(observer).get(label)
    then = "another is started in its place unless it has died too often"
    if given_up is not None:
        then = f"it has died too often and is given up: {rest_words(given_up)}"
    says = f"{len(down)} of {num_all} engines is gone{how}. The others take all requests; {then}."
    finding = _severe("engine_down", says, {"num_down": float(len(down)), "num_engines": float(num_all)})
    return finding._replace(
        share=len(down) / num_all, engines=tuple(down), helps_not=("any limit: the engine is not there",)
    )


def _given_up(observer: Observer, now: int) -> list[Finding]:
    """That the last engine died and none followed, where the server has ended or ends."""
    state = observer.state
    if state.engines or not state.past_engines:
        return []
    last = state.past_engines[-1].source
    process = state.processes.get(last.role, last.pid)
    if process is None or not process.exit_code or process.was_told:
        return []
    num_deaths = 1 + sum(isinstance(record, EngineRestarted) for _, record in observer.facts)
    ended = " and the server gave up" if observer.is_live or _has_server_ended(observer) else ""
    says = f"The engine died {times(num_deaths)}{ended}{_how(observer, now)}."
    return [_severe("engine_dead", says, {"num_deaths": float(num_deaths), **_evidence(observer, now)})]


def _has_server_ended(observer: Observer) -> bool:
    servers = [each for each in observer.state.processes.all() if _is_server(each)]
    return bool(servers) and all(server.state == "exited" for server in servers)


def _is_server(process: ProcessFacts) -> bool:
    return process.role.startswith(API_ROLE)


def _draining(observer: Observer) -> Finding:
    engines = observer.state.engines.values()
    num_running = sum(engine.num_running for engine in engines)
    num_waiting = sum(engine.num_waiting for engine in engines)
    return Finding(
        "draining",
        0.0,
        f"The server ends: no request is let in, and the {num_running} that run and {num_waiting} that wait have "
        "until --shutdown-timeout.",
        {"num_running": float(num_running), "num_waiting": float(num_waiting)},
        ("waiting, or another server",),
        ("any limit: nobody new is let in",),
    )


def _hanging(stall: StallBegun, now: int) -> Finding:
    seconds = max(0, now - stall.stuck_at) / NS
    stacks = "its stacks (POST /inspect/stacks) and `vllm-obs incident show`"
    helps = f"`kill -CONT {stall.pid}`, which lets it go on" if stall.process_state == STOPPED else stacks
    return Finding(
        "stalled_server",
        1.0,
        f"{stall.says} It has stood still for {seconds:.0f} s.",
        {"stalled_seconds": seconds, "pid": float(stall.pid), "role": stall.role},
        (helps,),
        (_HANGS_USELESS,),
        is_severe=True,
    )


def _severe(name: str, says: str, evidence: dict[str, float | str]) -> Finding:
    return Finding(name, 1.0, says, evidence, (_INCIDENT_HELP,), (_LIMITS_USELESS,), is_severe=True)


def _last_death(observer: Observer, now: int) -> Death | None:
    deaths = [death for death in deaths_of(observer, now) if not death.role.startswith(API_ROLE)]
    return deaths[-1] if deaths else None


def _how(observer: Observer, now: int) -> str:
    death = _last_death(observer, now)
    return f": {death.says.removesuffix('.')}" if death is not None else ""


def _evidence(observer: Observer, now: int) -> dict[str, float | str]:
    death = _last_death(observer, now)
    if death is None:
        return {}
    figures: dict[str, float | str] = {"role": death.role, "pid": float(death.pid)}
    if death.exit_code is not None:
        figures["exit_code"] = float(death.exit_code)
    if death.died_at:
        figures["seconds_since"] = max(0, now - death.died_at) / NS
    return figures
