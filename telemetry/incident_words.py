"""What an incident says in one sentence, and in a line for each thing that followed."""

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.death_cause import EXIT_OUT_OF_MEMORY, DeathCause, signal_name
from vllm_obs.telemetry.death_watch import End
from vllm_obs.telemetry.explain_words import count
from vllm_obs.telemetry.incident_finding import FailedStep, Finding
from vllm_obs.telemetry.memory_limits import MemoryLimits
from vllm_obs.telemetry.ring_header import RingHeader

_IN_A_STEP = frozenset(
    {Activity.SCHEDULING, Activity.EXECUTING, Activity.SAMPLING, Activity.UPDATING, Activity.SENDING}
)
_DOING = {
    Activity.STARTING: " while it started",
    Activity.LOADING_MODEL: " while it loaded the model",
    Activity.SIZING_CACHE: " while it made the cache",
    Activity.WARMING_UP: " while it warmed up",
    Activity.WAITING: " while it waited for work",
    Activity.STOPPING: " while it ended",
}
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def sentence(finding: Finding, header: RingHeader | None, num_open: int) -> str:
    """What happened, to whom, in the middle of what, and what it cut short."""
    what = _what(finding, header)
    followed = f" {_followed(finding.others)}" if finding.others else ""
    requests = f" {count(num_open, 'request')} {'was' if num_open == 1 else 'were'} open." if num_open else ""
    return f"{what}{followed}{requests}"


def end_line(end: End) -> str:
    """How a process ended that was not the first."""
    who = f"{end.role} (pid {end.pid})"
    if end.exit_code is None:
        return f"{who} ended"
    if end.exit_code < 0:
        return f"{who} was killed by {signal_name(-end.exit_code)}"
    return f"{who} ended with exit code {end.exit_code}"


def doing(header: RingHeader | None) -> str:
    """What a process was in the middle of, as its ring's header has it; empty where that tells nothing."""
    if header is None:
        return ""
    if header.activity in _IN_A_STEP:
        return f" in step {header.step} ({header.activity.label})"
    return _DOING.get(header.activity, "")


def size(num_bytes: int) -> str:
    """1.5 GiB."""
    for unit_bytes, unit in _UNITS:
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.3g} {unit}"
    return f"{num_bytes} bytes"


def _what(finding: Finding, header: RingHeader | None) -> str:
    who = f"{finding.role} (pid {finding.pid})"
    if finding.stall is not None:
        return finding.stall.says.rstrip(".") + "."
    if finding.death is None or finding.end is None:
        return _step_sentence(finding.failed, finding.cause == "out_of_memory")
    when = doing(header)
    if finding.failed:
        last = finding.failed[-1]
        when = f" after step {last.record.step} had failed with {last.error_type}"
    return f"{who} {_how(finding.death, finding.end, when)}."


def _how(death: DeathCause, end: End, when: str) -> str:
    if death.cause == "out_of_memory":
        return _without_memory(death, end, when)
    if death.cause == "killed":
        if death.is_inferred:
            return f"was gone at once{when}, by SIGKILL or alike (inferred: nothing else leaves no trace)"
        return f"was killed by {death.signal_name}{when}"
    if death.cause == "crashed":
        place = f" at {death.trace.place}" if death.trace is not None and death.trace.place else ""
        return f"crashed with {death.signal_name or 'a fatal error'}{place}{when}"
    verb = "gave up" if death.cause == "exception" else "left"
    return f"{verb} with exit code {end.exit_code}{when}{_reason(death)}"


def _reason(death: DeathCause) -> str:
    words, trace = death.last_words, death.trace
    is_type_alone = " " not in words
    if trace is not None and is_type_alone:
        return f": {trace.kind} at {trace.place}" if trace.place else f": {trace.kind}"
    return f": {words}" if words else ""


def _without_memory(death: DeathCause, end: End, when: str) -> str:
    limit = _limit_words(end.memory)
    if death.signal_name:
        return f"was killed by the kernel for lack of memory{when}{limit}"
    code = end.exit_code if end.exit_code is not None else EXIT_OUT_OF_MEMORY
    return f"could get no memory{when} and ended with exit code {code}{limit}"


def _limit_words(memory: MemoryLimits | None) -> str:
    if memory is None:
        return ""
    words = [f"it held {size(memory.resident_bytes)}"] if memory.resident_bytes else []
    words += [f"its control group may have {size(memory.limit_bytes)}"] if memory.limit_bytes else []
    words += (
        [f"its address space may have {size(memory.address_limit_bytes)}"] if memory.address_limit_bytes else []
    )
    return f" ({', '.join(words)})" if words else ""


def _step_sentence(failed: list[FailedStep], has_no_memory: bool) -> str:
    first = failed[0]
    engine = first.source.engine or "0"
    num_ended = sum(len(each.record.request_ids) for each in failed)
    what = "could get no memory" if has_no_memory else "failed"
    more = f", and {count(len(failed) - 1, 'step')} after it" if len(failed) > 1 else ""
    ended = f"{count(num_ended, 'request')} ended with an error"
    which = f"Step {first.record.step} of engine {engine}"
    return f"{which} {what} with {first.error_type}{more}; {ended}, the engine goes on."


def _followed(others: list[End]) -> str:
    names = [other.role for other in others]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
    return f"{listed} ended with it."
