"""The watchdog's rule: from looks at the ring headers of a process, whether it moves, rests or stands still."""

from typing import Literal, NamedTuple

from vllm_obs.telemetry.activity import Activity

MAX_GAP_NS = 1_000_000_000
"""Of the time between two looks no more than this counts against anybody: whoever looks so seldom was stopped or
starved itself, and the others may have been as well."""

State = Literal["alive", "long_step", "idle", "loading", "paused", "ending", "stalled"]
"""How an engine, API server or launcher is. In `long_step` it moves, layer by layer, in a step that takes long."""

_BOUND_TO_REST: dict[Activity, State] = {
    Activity.UNKNOWN: "loading",
    Activity.STARTING: "loading",
    Activity.LOADING_MODEL: "loading",
    Activity.SIZING_CACHE: "loading",
    Activity.WARMING_UP: "loading",
    Activity.PAUSED: "paused",
    # All that live wait for a thread whose work is bounded; the loop waits with them.
    Activity.COMPILING_GRAMMAR: "alive",
    Activity.STOPPING: "ending",
}
"""What a process can be doing that is never a stall, however long it takes."""


class ProcessLook(NamedTuple):
    """What the ring header of one process said at one moment. `rank` and `stage` are -1 for what is no worker.

    `host` names another host than this, whose kernel can be asked nothing here.
    """

    role: str
    pid: int
    rank: int
    generation: int
    heartbeat_at: int
    step: int
    progress: int
    activity: Activity
    activity_at: int
    stage: int = 0
    host: str = ""


class EngineLook(NamedTuple):
    """One engine at one moment; without workers of their own the core does their work."""

    engine: str
    core: ProcessLook
    workers: tuple[ProcessLook, ...] = ()


class Work(NamedTuple):
    """What is asked of an engine: sequences that were sent to it and have not ended, and when the last was sent.

    The moment (monotonic ns, 0 for unknown) is there so that an engine is not let off because its clients have
    lost patience: a message that was sent after it last went round is still to be taken.
    """

    num_open: int = 0
    submitted_at: int = 0


class Track(NamedTuple):
    """What is kept from look to look. Moments are monotonic ns.

    `moved_at` is the last look that saw it move or rest, `still_ns` how long it could have moved since and did
    not, `step_ns` how long it has been seen in its step.
    """

    state: State
    moved_at: int
    still_ns: int
    looked_at: int
    marks: tuple[int, ...]
    heartbeat_at: int
    step: int
    step_ns: int


def judge(track: Track | None, look: EngineLook, work: Work, now: int, limit_ns: int) -> Track:
    """How an engine is at `now`: stalled if it has work and nothing in it has moved for `limit_ns`.

    Progress is that of its core and workers together, which they make layer by layer; going round without running
    anything is none. `track` is what the look before gave, None for the first.
    """
    core = look.core
    marks = tuple(mark for process in (core, *look.workers) for mark in (process.generation, process.progress))
    rest = _BOUND_TO_REST.get(core.activity) or ("" if _has_work(core, work) else "idle")
    if rest == "paused" and _is_owed(core, work):
        rest = ""  # it has been told to run nothing, but not to hear nothing
    goes_round = track is not None and core.heartbeat_at != track.heartbeat_at
    # Nobody is waiting: to have gone round is all that can be asked of it.
    has_moved = track is None or marks != track.marks or (goes_round and not work.num_open)
    return _next(track, core, (rest, has_moved, marks), now, limit_ns)


def judge_server(track: Track | None, look: ProcessLook, now: int, limit_ns: int) -> Track:
    """How an API server or launcher is at `now`: stalled if its event loop has not gone round for `limit_ns`."""
    rest: State | Literal[""] = "" if look.activity in (Activity.SERVING, Activity.BROKEN) else "loading"
    if look.activity is Activity.STOPPING:
        rest = "ending"
    marks = (look.generation, look.heartbeat_at)
    # Each time round is a step of its own.
    round_of = look._replace(step=look.heartbeat_at)
    return _next(track, round_of, (rest, track is None or marks != track.marks, marks), now, limit_ns)


def _has_work(core: ProcessLook, work: Work) -> bool:
    """By its own word it is in a step, or something was sent to it that has not ended or has not been taken."""
    return core.activity is not Activity.WAITING or work.num_open > 0 or _is_owed(core, work)


def _is_owed(core: ProcessLook, work: Work) -> bool:
    """Whether something was sent to it after it went round last: it would have gone round to take it."""
    return work.submitted_at > core.heartbeat_at


def _next(
    track: Track | None,
    look: ProcessLook,
    seen: tuple[State | Literal[""], bool, tuple[int, ...]],
    now: int,
    limit_ns: int,
) -> Track:
    rest, has_moved, marks = seen
    gap_ns = min(max(0, now - track.looked_at), MAX_GAP_NS) if track is not None else 0
    moved_at, still_ns, step_ns = now, 0, 0
    if track is not None and not has_moved and not rest:
        moved_at, still_ns = track.moved_at, track.still_ns + gap_ns
    if track is not None and not rest and (look.generation, look.step) == (track.marks[0], track.step):
        step_ns = track.step_ns + gap_ns
    state: State = rest or "alive"
    if still_ns >= limit_ns:
        state = "stalled"
    elif step_ns >= limit_ns:
        state = "long_step"
    return Track(state, moved_at, still_ns, now, marks, look.heartbeat_at, look.step, step_ns)
