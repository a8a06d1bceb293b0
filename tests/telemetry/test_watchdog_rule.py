"""A process is stalled when it has work and nothing in it moves, and in no other case."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook, Track, Work, judge, judge_server

S = 10**9
LIMIT = 10 * S
BEGIN = 1000 * S


def core(activity: Activity = Activity.EXECUTING, **words: int) -> ProcessLook:
    """A core's header, in step 7 with progress 50 unless told otherwise."""
    values = {"generation": 1, "heartbeat_at": BEGIN, "step": 7, "progress": 50} | words
    return ProcessLook("EngineCore_DP0", 1, -1, activity=activity, activity_at=BEGIN, **values)


def worker(rank: int, progress: int) -> ProcessLook:
    words = (BEGIN, 7, progress, Activity.EXECUTING, BEGIN)
    return ProcessLook(f"Worker_TP{rank}", 10 + rank, rank, 2 + rank, *words)


def watched(
    look: EngineLook, work: Work, seconds: int, track: Track | None = None, limit_ns: int = LIMIT
) -> Track:
    """What a look each half second says of an engine that does not change."""
    begin = track.looked_at if track else BEGIN
    for number in range(2 * seconds + 1):
        track = judge(track, look, work, begin + number * S // 2, limit_ns)
    assert track is not None
    return track


def test_work_and_no_progress_for_the_limit_is_a_stall_and_not_before() -> None:
    look = EngineLook("0", core())
    before = watched(look, Work(1), 9)
    assert (before.state, before.still_ns, before.moved_at) == ("alive", 9 * S, BEGIN)
    after = watched(look, Work(1), 1, before)
    assert (after.state, after.moved_at) == ("stalled", BEGIN)


def test_one_layer_of_one_worker_is_progress() -> None:
    track = watched(EngineLook("0", core(), (worker(0, 5), worker(1, 5))), Work(1), 12)
    assert track.state == "stalled"
    moved = judge(track, EngineLook("0", core(), (worker(0, 5), worker(1, 6))), Work(1), BEGIN + 13 * S, LIMIT)
    assert (moved.state, moved.still_ns, moved.moved_at) == ("long_step", 0, BEGIN + 13 * S)


@pytest.mark.parametrize(
    ("activity", "state"),
    [
        (Activity.STARTING, "loading"),
        (Activity.LOADING_MODEL, "loading"),
        (Activity.SIZING_CACHE, "loading"),
        (Activity.WARMING_UP, "loading"),
        (Activity.PAUSED, "paused"),
        (Activity.COMPILING_GRAMMAR, "alive"),
        (Activity.STOPPING, "ending"),
    ],
)
def test_what_may_take_as_long_as_it_likes_is_no_stall(activity: Activity, state: str) -> None:
    assert watched(EngineLook("0", core(activity)), Work(3, BEGIN), 3600).state == state


def test_an_engine_with_nothing_to_do_is_idle_however_long() -> None:
    assert watched(EngineLook("0", core(Activity.WAITING)), Work(), 3600).state == "idle"


@pytest.mark.parametrize("activity", [Activity.WAITING, Activity.PAUSED])
@pytest.mark.parametrize("num_open", [0, 1])
def test_what_is_sent_to_an_engine_that_was_stopped_while_it_rested_is_owed(
    activity: Activity, num_open: int
) -> None:
    look = EngineLook("0", core(activity))
    track = watched(look, Work(), 60)
    # The client may have left by now: it was never answered all the same.
    track = watched(look, Work(num_open, BEGIN + 60 * S), 10, track)
    assert track.state == "stalled"
    awake = EngineLook("0", core(activity, heartbeat_at=BEGIN + 75 * S))
    assert judge(track, awake, Work(0, BEGIN + 60 * S), BEGIN + 75 * S, LIMIT).state in ("idle", "paused")


def test_a_core_that_goes_round_and_runs_nothing_is_stalled_while_somebody_waits() -> None:
    track = None
    for number in range(30):
        look = EngineLook("0", core(heartbeat_at=BEGIN + number * S // 2, step=number))
        track = judge(track, look, Work(1), BEGIN + number * S // 2, LIMIT)
    assert track is not None
    assert track.state == "stalled"
    alone = EngineLook("0", core(heartbeat_at=BEGIN + 20 * S, step=31))
    assert judge(track, alone, Work(), BEGIN + 20 * S, LIMIT).state == "alive"


def test_a_step_that_its_clients_have_left_is_still_one_that_does_not_end() -> None:
    assert watched(EngineLook("0", core()), Work(), 10).state == "stalled"


def test_who_looks_late_blames_nobody_at_once() -> None:
    look, work = EngineLook("0", core()), Work(1)
    track = watched(look, work, 1)
    late = judge(track, look, work, BEGIN + 300 * S, LIMIT)
    assert (late.state, late.still_ns) == ("alive", 2 * S)
    assert watched(look, work, 8, late).state == "stalled"


def test_another_process_of_the_same_name_begins_anew() -> None:
    track = watched(EngineLook("0", core()), Work(1), 9)
    again = judge(track, EngineLook("0", core(generation=9)), Work(1), BEGIN + 10 * S, LIMIT)
    assert (again.state, again.still_ns) == ("alive", 0)


@pytest.mark.parametrize("serving", [Activity.SERVING, Activity.BROKEN])
def test_an_api_server_is_stalled_when_its_loop_does_not_go_round(serving: Activity) -> None:
    def server(activity: Activity, heartbeat_at: int) -> ProcessLook:
        return ProcessLook("APIServer_0", 3, -1, 4, heartbeat_at, 0, 0, activity, BEGIN)

    track = None
    for number in range(100):
        at = BEGIN + number * S // 2
        track = judge_server(track, server(serving, at), at, LIMIT)
        assert track.state == "alive"
    for number in range(21):
        at = BEGIN + 50 * S + number * S // 2
        track = judge_server(track, server(serving, BEGIN + 50 * S), at, LIMIT)
    assert track is not None
    assert track.state == "stalled"
    for activity, state in ((Activity.STARTING, "loading"), (Activity.STOPPING, "ending")):
        assert judge_server(track, server(activity, BEGIN), BEGIN + 99 * S, LIMIT).state == state


class Moment(NamedTuple):
    """What is true of an engine in one look, and since when it was made to stand still (0: it was not)."""

    look: EngineLook
    work: Work
    now: int
    stuck_since: int


@dataclass
class Day:
    """An engine's ring header over time, in ticks of 50 ms, under one kind of load after another.

    `own` is its clock of work: it stands still with the machine (a suspension) and with a planted stop.
    """

    rng: random.Random
    now: int = BEGIN
    generation: int = 1
    heartbeat_at: int = BEGIN
    step: int = 0
    progress: int = 0
    activity: Activity = Activity.STARTING
    num_open: int = 0
    submitted_at: int = 0
    stuck_since: int = 0
    next_look_at: int = BEGIN
    looks: list[Moment] = field(default_factory=list)

    TICK = S // 20

    def moments(self, seconds: int) -> Iterator[Moment]:
        """Looks at it, as they come, for at least so many seconds."""
        self.load()
        while self.now < BEGIN + seconds * S:
            for act in self.rng.sample(
                [self.idle, self.serve, self.long_prefill, self.pause, self.restart, self.unwatched,
                 self.suspended, self.hurried_clients, self.stopped_at_work, self.stopped_at_rest], 10
            ):  # fmt: skip
                act()
                yield from self.looks
                self.looks.clear()

    def load(self) -> None:
        self.activity, self.progress, self.num_open = Activity.LOADING_MODEL, 0, 0
        self.pass_time(self.rng.uniform(5, 60))
        self.rest()

    def restart(self) -> None:
        self.generation += 1
        self.load()

    def idle(self) -> None:
        self.pass_time(self.rng.uniform(1, 200))

    def serve(self) -> None:
        """A queue that moves: steps of up to two seconds, of eight layers each."""
        self.submit(self.rng.randint(1, 500))
        for _ in range(self.rng.randint(5, 100)):
            self.run_step(self.rng.uniform(0.02, 2.0), 8)
        self.rest()

    def long_prefill(self) -> None:
        self.submit(1)
        self.run_step(60.0, self.rng.randint(8, 60))
        self.rest()

    def pause(self) -> None:
        self.submit(3)
        self.run_step(0.1, 4)
        self.heartbeat_at, self.activity = self.now, Activity.PAUSED
        self.pass_time(self.rng.uniform(10, 100))
        self.run_step(0.1, 4)
        self.rest()

    def unwatched(self) -> None:
        """The one who looks is stopped itself, and works off nothing of what happened meanwhile."""
        self.submit(1)
        self.run_step(0.5, 4)
        self.next_look_at = self.now + int(self.rng.uniform(3, 90) * S)
        for _ in range(5):
            self.run_step(self.rng.uniform(5, 20), 3)
        self.rest()
        self.pass_time(max(0, self.next_look_at - self.now) / S)

    def suspended(self) -> None:
        """The whole machine stands still in the middle of a step."""
        self.submit(1)
        self.run_step(0.5, 4)
        self.now += int(self.rng.uniform(20, 200) * S)
        self.next_look_at = self.now
        self.run_step(3.0, 4)
        self.rest()

    def hurried_clients(self) -> None:
        """They come and leave before anything has been made for them; the engine hears of both."""
        for _ in range(20):
            self.submit(1)
            self.run_step(0.1, 2)
            self.rest()
            self.pass_time(self.rng.uniform(0, 1))

    def stopped_at_work(self) -> None:
        self.submit(2)
        self.run_step(1.0, 4)
        self.stuck_since = self.now
        self.pass_time(self.rng.uniform(12, 40))
        self.run_step(0.2, 4)
        self.rest()

    def stopped_at_rest(self) -> None:
        self.pass_time(5)
        self.submit(1)
        self.stuck_since = self.now
        self.pass_time(self.rng.uniform(12, 40))
        self.run_step(0.2, 4)
        self.rest()

    def submit(self, number: int) -> None:
        self.num_open, self.submitted_at = number, self.now

    def rest(self) -> None:
        self.heartbeat_at = self.now
        self.activity, self.num_open = Activity.WAITING, 0
        self.pass_time(0.5)

    def run_step(self, seconds: float, num_layers: int) -> None:
        self.stuck_since = 0
        self.heartbeat_at = self.now
        self.step += 1
        self.activity = Activity.EXECUTING
        for _ in range(num_layers):
            self.pass_time(seconds / num_layers)
            self.progress += 1

    def pass_time(self, seconds: float) -> None:
        until = self.now + int(seconds * S)
        while self.now < until:
            if self.now >= self.next_look_at:
                header = core(
                    self.activity, generation=self.generation, heartbeat_at=self.heartbeat_at,
                    step=self.step, progress=self.progress,
                )  # fmt: skip
                work = Work(self.num_open, self.submitted_at)
                self.looks.append(Moment(EngineLook("0", header), work, self.now, self.stuck_since))
                self.next_look_at = self.now + int(self.rng.choice((0.25, 0.5, 0.5, 0.9)) * S)
            self.now += min(self.TICK, until - self.now)


@pytest.mark.parametrize("seed", range(4))
def test_an_hour_of_all_kinds_of_load_has_those_stalls_that_it_has_and_no_other(seed: int) -> None:
    track: Track | None = None
    stalls: dict[int, int] = {}
    planted: dict[int, int] = {}
    states: set[str] = set()
    for moment in Day(random.Random(seed)).moments(3600):
        track = judge(track, moment.look, moment.work, moment.now, LIMIT)
        states.add(track.state)
        if moment.stuck_since:
            planted[moment.stuck_since] = moment.now
        if track.state == "stalled":
            assert moment.stuck_since, f"a false alarm after {(moment.now - BEGIN) / S:.1f} s"
            stalls.setdefault(moment.stuck_since, moment.now)
    long_enough = {since for since, until in planted.items() if until - since > LIMIT + 2 * S}
    assert long_enough <= set(stalls)
    assert len(long_enough) >= 4
    # A look each 0.9 s at most here: one to see the last that moved, and one to see that it was the last.
    assert all(LIMIT - S < at - since < LIMIT + 2 * S for since, at in stalls.items())
    assert states == {"alive", "long_step", "idle", "loading", "paused", "stalled"}
