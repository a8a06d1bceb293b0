"""SloTargets: what `--slo` promises of each sequence, read from text and checked once."""

import math
import re
from typing import NamedTuple

OBJECTIVES = ("ttft", "tpot", "e2e")
"""What can be promised: time to first token, mean time per output token after it, end-to-end latency."""
MAX_SECONDS = 86_400.0
MAX_LIKELY_SECONDS = 60.0
DOUBTED = ("ttft", "tpot")
"""Above MAX_LIKELY_SECONDS nobody promises these: milliseconds were meant."""
_ALIASES = {"e2el": "e2e"}
_PART = re.compile(r"\s*([a-z0-9]+)\s*([=:])\s*(\d{1,9}(?:\.\d{0,12})?)\s*(ms|s)?\s*", re.ASCII)


class SloTargets(NamedTuple):
    """Limits in seconds; 0 where nothing is promised."""

    ttft: float = 0.0
    tpot: float = 0.0
    e2e: float = 0.0

    def given(self) -> dict[str, float]:
        """Those that are promised, by name."""
        return {name: limit for name, limit in self._asdict().items() if limit}


def slo_targets(text: str) -> SloTargets:
    """`ttft=0.5,tpot=50ms` in seconds (or with a unit), or `ttft:500,tpot:50` in milliseconds as for a benchmark.

    Raises ValueError with a plain reason.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, seconds = _target(part)
        if name in limits:
            raise ValueError(f"{name} is given twice")
        limits[name] = seconds
    return SloTargets(**limits)


def slo_text(targets: SloTargets) -> str:
    """The text that gives these targets."""
    return ",".join(f"{name}={_digits(limit)}" for name, limit in targets.given().items())


def slo_doubt(text: str) -> str:
    """What of a text may have been meant in milliseconds, as a question; empty where nothing looks like it."""
    doubted = [
        f"{name}={_digits(limit)} is {_digits(limit)} seconds: did you mean {name}={_digits(limit)}ms?"
        for name, limit in (slo_targets(text).given().items() if text else ())
        if name in DOUBTED and limit > MAX_LIKELY_SECONDS
    ]
    return f"--slo {'; '.join(doubted)}" if doubted else ""


def _digits(seconds: float) -> str:
    """Seconds to the picosecond, which is what the finest text can say, and without an exponent."""
    return f"{seconds:.12f}".rstrip("0").rstrip(".")


def _target(part: str) -> tuple[str, float]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part.strip()[:64]!r} is not like ttft=0.5, tpot=50ms or ttft:500")
    word, sign, digits, unit = match.groups()
    name = _ALIASES.get(word, word)
    if name not in OBJECTIVES:
        raise ValueError(f"{word[:64]!r} is not one of {', '.join(OBJECTIVES)}")
    is_milliseconds = unit == "ms" or (sign == ":" and unit is None)
    seconds = float(digits) / 1000 if is_milliseconds else float(digits)
    if not 0 < seconds <= MAX_SECONDS or not math.isfinite(seconds):
        raise ValueError(f"{name} is {seconds:g} s; it must be above 0 and at most {MAX_SECONDS:g}")
    return name, seconds
