"""Figures as people read them: lengths of time, sizes, shares, counts, and what stands where there is none."""

from collections.abc import Iterable

NOTHING = "–"
NS = 1e9


def seconds(value: float | None) -> str:
    """A length of time with three digits: 2.31 s, 940 ms, 87 µs; minutes and hours from two minutes on."""
    if value is None:
        return NOTHING
    if value >= 7200:
        return f"{value // 3600:.0f} h {value % 3600 // 60:02.0f} min"
    if value >= 120:
        return f"{value // 60:.0f} min {int(value % 60):02d} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            number = value / size
            return f"{number:.{max(0, 2 - (number >= 10) - (number >= 100))}f} {unit}"
    return "0 s" if value <= 0 else "<1 µs"


def nanoseconds(value: float | None) -> str:
    """The same of nanoseconds."""
    return NOTHING if value is None else seconds(value / NS)


def size(num_bytes: float | None) -> str:
    """A size in binary units: 1.25 GiB."""
    if num_bytes is None:
        return NOTHING
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.{0 if unit == 'B' or value >= 100 else 1}f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def share(value: float | None) -> str:
    """A share between 0 and 1 in percent; little is not nothing."""
    if value is None:
        return NOTHING
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def number(value: float | None) -> str:
    """A number with a thin space between thousands; small ones with two digits."""
    if value is None:
        return NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def known(values: Iterable[float | None]) -> list[float]:
    """What a sparkline can draw: gaps are left out."""
    return [value for value in values if value is not None]


def count(value: int, noun: str) -> str:
    """So many of them: 1 request, 2 requests."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"
