"""Facts of any process: its start and end, its memory, its event loop, and frames it could not use."""

from typing import NamedTuple


class ProcessStarted(NamedTuple):
    """A process of the tree began. `wall_at` is `time.time_ns()` at `started_at`, the only wall time recorded."""

    role: str
    pid: int
    started_at: int
    wall_at: int


class ProcessPhase(NamedTuple):
    """One named part of start-up (imports, load, cache, warm-up) took place between the two moments.

    Meanwhile its process used so much CPU time, all threads together, and read so many bytes from storage (what
    was in the page cache already does not count).
    """

    role: str
    phase: str
    begun_at: int
    ended_at: int
    cpu_seconds: float = 0.0
    num_read_bytes: int = 0


class ProcessReady(NamedTuple):
    """The process answered READY to its owner."""

    role: str
    pid: int
    ready_at: int


class ProcessExited(NamedTuple):
    """An owner saw its child end. `exit_code` is negative for a signal, as `subprocess` reports it.

    `was_told` says that the owner had ordered the end, or brought it about.
    """

    role: str
    pid: int
    exit_code: int
    exited_at: int
    was_told: bool = False


class EngineRestarted(NamedTuple):
    """API server: an engine has taken the place of one that died, and is ready.

    `engine` is its label, `generation` counts the engines under it from 0. `cause` is whose end it was and how it
    ended, in words from a closed set, empty where it was no process's end; `num_open` sequences ended with it.
    """

    engine: str
    generation: int
    cause: str
    num_open: int
    died_at: int
    ready_at: int


class EngineGivenUp(NamedTuple):
    """API server or launcher: an engine has died too often, and none is started in its place while others serve.

    After `rest_seconds` it is tried again; 0 where it never is.
    """

    engine: str
    rest_seconds: float
    given_up_at: int


class MemorySampled(NamedTuple):
    """A process: what its memory holds at the end of a part of its start, or when it was asked (`phase` empty).

    `resident_bytes` is all of it that is in RAM. `parts` (libraries, weights, kv_cache, activations, …) and
    `part_bytes` are parallel: what each takes of the resident bytes; what no part explains is not listed. At the
    end of a start `ranges` is parallel to them too: where in its address space a part lies, first byte and length
    in turn, so that what of it is in RAM can be looked up later; `part_bytes` are then what was allocated. Among
    them are some of Python's `objects` (no part, 0 bytes): what lies around them is the interpreter's heap.
    """

    role: str
    pid: int
    phase: str
    resident_bytes: int
    parts: list[str]
    part_bytes: list[int]
    sampled_at: int
    ranges: list[list[int]] = []  # noqa: RUF012 (of a NamedTuple; nobody changes a record)


class LoopSampled(NamedTuple):
    """API server: once a second, how late its event loop ran at worst since the last time, and its queues.

    `pressure` is from 0 to 1, `pressure_source` what it is from, of a closed set. So many connections were open,
    and there may be `max_num_connections` by the flag and the files that its process may open.
    """

    client_index: int
    sampled_at: int
    max_lag_seconds: float
    num_open_http: int
    num_open_sequences: int
    num_queued_deltas: int
    pressure: float = 0.0
    pressure_source: str = ""
    num_connections: int = 0
    max_num_connections: int = 0


class GarbageSampled(NamedTuple):
    """API server: once a second, what its garbage collector has done so far, youngest generation first."""

    client_index: int
    sampled_at: int
    num_collections: list[int]
    num_collected: list[int]
    num_uncollectable: list[int]


class FrameDropped(NamedTuple):
    """A frame on a socket or queue did not decode or did not belong; `reason` is from a closed set."""

    where: str
    reason: str
    dropped_at: int
