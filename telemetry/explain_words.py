"""Numbers in the words of an explanation: lengths of time, counts with their nouns."""


def duration(length_ns: int) -> str:
    """A length of time for people, with three digits: 2.31 s, 940 ms, 12.5 ms, 87 µs."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if length_ns >= size:
            value = length_ns / size
            return f"{value:.{max(0, 2 - (value >= 10) - (value >= 100))}f} {unit}"
    return f"{length_ns} ns"


def count(number: int, noun: str) -> str:
    """So many of them: 1 token, 2 tokens."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def times(number: int) -> str:
    """So often: once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
