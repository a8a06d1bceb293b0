"""Floor: the least time this machine's workers have been seen to need for so many tokens and bytes."""

import math
from typing import Any, NamedTuple

from vllm_obs.telemetry.records import EngineDescribed, StepPlanned, WorkerStep

MIN_SEEN = 8
"""Steps of about the same work before their least time is taken for a floor."""
MAX_BUCKETS = 1024
TOKEN_BUCKETS_PER_OCTAVE = 4
BYTE_BUCKETS_PER_OCTAVE = 8

Bucket = tuple[int, int]


class Work(NamedTuple):
    """What a step's workers have to do: tokens computed, and bytes of weights, keys and values they read."""

    num_tokens: int
    num_bytes: int


def work_of(planned: StepPlanned, described: EngineDescribed) -> Work:
    """A plan's work; weights are read once a step, keys and values up to each row's last token."""
    num_tokens = sum(planned.num_scheduled_tokens)
    num_read = sum(planned.num_computed_tokens) + num_tokens
    return Work(num_tokens, described.weight_bytes + num_read * max(1, described.kv_bytes_per_token))


def worker_ns(workers: list[WorkerStep], free_at: int = 0) -> int:
    """From the first rank's taking of the plan to the last rank's last token; 0 where no rank told.

    Of a step begun ahead from the moment `free_at` on, when its rank was through with the one before.
    """
    if not workers:
        return 0
    if len(workers) == 1:
        return workers[0].sampled_at - max(workers[0].received_at, free_at)
    return max([worker.sampled_at for worker in workers]) - min([worker.received_at for worker in workers])


class Floor:
    """A lower envelope over buckets of (tokens, bytes), of one engine's steps.

    A step that did at least as much work in some time shows that less work can be done in that time: so the
    floor of a bucket is the least time of all buckets with no fewer tokens and no fewer bytes, and more work
    never has a lower floor than less. Only buckets that saw MIN_SEEN steps count. At most MAX_BUCKETS: where
    there are more those that saw least make room.
    """

    def __init__(self) -> None:
        self._least: dict[Bucket, int] = {}
        self._num_seen: dict[Bucket, int] = {}
        self._floors: dict[Bucket, int] = {}

    def __len__(self) -> int:
        return len(self._least)

    def observe(self, work: Work, num_ns: int) -> None:
        """A step did this work in that time (more than 0 ns)."""
        bucket = _bucket(work)
        num_seen = self._num_seen.get(bucket, 0) + 1
        if num_seen == 1 and len(self._least) >= MAX_BUCKETS:
            self._make_room()
        self._num_seen[bucket] = num_seen
        least = self._least.get(bucket)
        if least is None or num_ns < least:
            self._least[bucket] = num_ns
        if num_seen == MIN_SEEN or (num_seen > MIN_SEEN and least is not None and num_ns < least):
            self._lower(bucket, self._least[bucket])

    def of(self, work: Work) -> int | None:
        """The least time (ns) for that much work, None where too little like it was seen."""
        bucket = _bucket(work)
        if self._num_seen.get(bucket, 0) < MIN_SEEN:
            return None
        found = self._floors.get(bucket)
        if found is None:
            found = self._floors[bucket] = min(
                num_ns
                for (tokens, size), num_ns in self._least.items()
                if tokens >= bucket[0] and size >= bucket[1] and self._num_seen[tokens, size] >= MIN_SEEN
            )
        return found

    def bound(self, work: Work) -> int | None:
        """A time (ns) in which at least as much work was done once, however seldom anything like it was seen.

        None where no step did as much.
        """
        bucket = _bucket(work)
        above = (n for (tokens, size), n in self._least.items() if tokens >= bucket[0] and size >= bucket[1])
        return min(above, default=None)

    def state(self) -> Any:
        """In plain values."""
        return [[*bucket, least, self._num_seen[bucket]] for bucket, least in self._least.items()]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        rows = [(int(tokens), int(size), int(least), int(seen)) for tokens, size, least, seen in state]
        self._least = {(tokens, size): least for tokens, size, least, _ in rows[:MAX_BUCKETS]}
        self._num_seen = {(tokens, size): seen for tokens, size, _, seen in rows[:MAX_BUCKETS]}
        self._floors = {}

    def _lower(self, bucket: Bucket, num_ns: int) -> None:
        """What at least as much work took bounds all floors below it that are known already."""
        tokens, size = bucket
        for each, floor in self._floors.items():
            if num_ns < floor and each[0] <= tokens and each[1] <= size:
                self._floors[each] = num_ns

    def _make_room(self) -> None:
        rarest = min(self._num_seen, key=self._num_seen.__getitem__)
        del self._num_seen[rarest], self._least[rarest]
        self._floors.clear()


def _bucket(work: Work) -> Bucket:
    tokens, size = max(1, work.num_tokens), max(1, work.num_bytes)
    return (
        math.floor(math.log2(tokens) * TOKEN_BUCKETS_PER_OCTAVE),
        math.floor(math.log2(size) * BYTE_BUCKETS_PER_OCTAVE),
    )
