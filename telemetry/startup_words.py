"""What a start says in words: one sentence of where the time went, and hints where something can be done."""

from collections import defaultdict
from collections.abc import Sequence

from vllm_obs.telemetry.process_roles import LAUNCHER
from vllm_obs.telemetry.records import ProcessPhase
from vllm_obs.telemetry.startup_leaves import ENGINE, OBSERVER, WORKER, Start, is_around, is_front
from vllm_obs.telemetry.startup_path import Segment

NS = 1e9
MB = 1e6
MOST_NAMED = 3
NOTABLE_SHARE = 0.1
NOTABLE_READ_BYTES = 20 * MB
NOTABLE_SECONDS = 0.3
BUSY_SHARE = 0.5

_DOING = {
    "start process": "starting its interpreter",
    "read configuration": "reading its configuration",
    "start engine": "starting the engine's process",
    "import server": "importing the server",
    "import web framework": "importing the web framework",
    "import torch": "importing torch",
    "import worker": "importing the worker",
    "load tokenizer": "loading the tokenizer",
    "load weights": "loading weights",
    "open model": "reading the model's description",
    "pack embedding": "reading and packing the embedding",
    "pack layers": "reading and packing the layers",
    "wait for kernels": "compiling kernels",
    "kv cache": "sizing the KV cache",
    "warm-up": "warming up",
    "make core": "making its core",
    "start threads": "starting threads",
    "freeze garbage": "collecting garbage",
    "wait for engine": "waiting for the engine",
    "wait for the other ranks": "waiting for the other ranks",
}
_WHO = {ENGINE: "the engine", WORKER: "a worker", OBSERVER: "the Observer"}


def sentence(starts: Sequence[Start], path: Sequence[Segment]) -> str:
    """Ready after so long, and what most of it went to."""
    if not path:
        return "No API server of this run is known."
    total_ns = path[-1].ended_at - path[0].begun_at
    ready = all(start.is_ready for start in starts if is_front(start.role))
    head = f"Ready {total_ns / NS:.1f} s after start" if ready else f"Not ready {total_ns / NS:.1f} s after start"
    named = _largest(path, total_ns)
    if not named:
        return f"{head}."
    share = sum(length for _, length in named) / total_ns
    return f"{head}; {100 * share:.0f} % of it was {_listed(named)}."


def hints(starts: Sequence[Start], path: Sequence[Segment]) -> list[str]:
    """What could make the next start quicker, each with its figures."""
    found = [_cold_hint(starts), _kernel_hint(path), _crowded_hint(starts)]
    return [hint for hint in found if hint]


def _largest(path: Sequence[Segment], total_ns: int) -> list[tuple[tuple[str, str], int]]:
    lengths: defaultdict[tuple[str, str], int] = defaultdict(int)
    for segment in path:
        lengths[segment.role, segment.phase] += segment.length_ns
    by_length = sorted(lengths.items(), key=lambda item: -item[1])
    return [item for item in by_length[:MOST_NAMED] if item[1] >= NOTABLE_SHARE * total_ns]


def _listed(named: Sequence[tuple[tuple[str, str], int]]) -> str:
    """Each with its seconds; a process is named once for all that it did in a row."""
    words: list[str] = []
    before = ""
    for (role, phase), length in named:
        who = who_is(role)
        done = f"{_DOING.get(phase, phase) if phase else 'something no phase tells'} ({length / NS:.1f} s)"
        words.append(done if who == before else f"{who} {done}")
        before = who
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def who_is(role: str) -> str:
    """A process as people call it."""
    if role.startswith(LAUNCHER):
        return "the launcher"
    if is_front(role):
        return "the API server"
    return next((who for kind, who in _WHO.items() if role.startswith(kind)), role)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _cold_hint(starts: Sequence[Start]) -> str:
    """What came from storage: the next start finds it in memory, or does not if there is too little of it."""
    reading = [(phase, _own_read_bytes(phase, start), start) for start in starts for phase in start.facts.phases]
    most = sorted((row for row in reading if row[1] >= NOTABLE_READ_BYTES), key=lambda row: -row[1])[:MOST_NAMED]
    if not most:
        return ""
    told = [_read_words(phase, num_bytes, start) for phase, num_bytes, start in most]
    return (
        f"The page cache was cold, and much was read from storage by {', '.join(told)}. "
        "A second start on this machine reads it from memory; faster storage, or a warm image, helps the first."
    )


def _own_read_bytes(phase: ProcessPhase, start: Start) -> int:
    """What it read itself, without the phases within it."""
    inner = [part for part in start.facts.phases if is_around(phase, part)]
    outermost = [part for part in inner if not any(is_around(other, part) for other in inner)]
    return phase.num_read_bytes - sum(part.num_read_bytes for part in outermost)


def _read_words(phase: ProcessPhase, num_bytes: int, start: Start) -> str:
    seconds = max(1e-3, sum(leaf.length_ns for leaf in start.leaves if leaf.phase == phase.phase) / NS)
    read = f"{num_bytes / MB:.0f} MB in {seconds:.1f} s, {num_bytes / MB / seconds:.0f} MB/s"
    return f"{who_is(start.role)} {_DOING.get(phase.phase, phase.phase)} ({read})"


def _kernel_hint(path: Sequence[Segment]) -> str:
    waited = sum(segment.length_ns for segment in path if segment.phase == "wait for kernels") / NS
    if waited < NOTABLE_SECONDS:
        return ""
    return f"Weights were there {waited:.1f} s before the kernels were compiled: another core would take that off."


def _crowded_hint(starts: Sequence[Start]) -> str:
    """A process that computes does so without pause; one that did not get a core all the time shows less."""
    for start in starts:
        for phase in start.facts.phases:
            seconds = (phase.ended_at - phase.begun_at) / NS
            is_computing = phase.phase in ("import torch", "import server", "import web framework")
            if is_computing and seconds >= NOTABLE_SECONDS and 0 < phase.cpu_seconds < BUSY_SHARE * seconds:
                return (
                    f"{_capital(who_is(start.role))} had a core for {phase.cpu_seconds:.1f} s of the "
                    f"{seconds:.1f} s of {phase.phase!r}: it waited for storage, or the cores were busy."
                )
    return ""
