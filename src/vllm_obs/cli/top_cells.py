"""What `vllm-obs top` writes lines with: colours, bars, and numbers for people."""

import re

BOLD, DIM, RED, GREEN, YELLOW, RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_COLOUR = re.compile(r"\x1b\[\d*m")
NOTHING = "–"
"""What stands where nothing was measured."""


def cut(line: str, columns: int) -> str:
    """The line with at most `columns` characters to be seen; colours take no room."""
    shown, room, position = [], columns, 0
    while position < len(line):
        end = line.find("m", position) + 1 if line[position] == "\x1b" else position + 1
        if line[position] == "\x1b":
            shown.append(line[position:end])
        elif room:
            shown.append(line[position])
            room -= 1
        position = end
    return "".join(shown)


def plain(line: str) -> str:
    """The line without its colours."""
    return _COLOUR.sub("", line)


def short(text: str, width: int) -> str:
    """The text in at most `width` characters; where it is longer, its end shows that."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def bar(share: float, width: int) -> str:
    """A share (0 to 1) of that many characters."""
    full = round(width * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (width - full)


def age(seconds: float) -> str:
    """A length of time in at most 7 characters."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"


def latency(seconds: float | None) -> str:
    """A latency, or that there is none."""
    if seconds is None:
        return NOTHING
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def number(value: float | None, digits: int) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def megabytes(num_bytes: int | None) -> str:
    """A size, or nothing."""
    return "" if num_bytes is None else f"{num_bytes / 1e6:.0f} MB"
