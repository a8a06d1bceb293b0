"""What a process that died left in its run directory: its crash's stacks, its last exception, its last lines."""

import re
from pathlib import Path
from typing import NamedTuple

MAX_TAIL_BYTES = 256 * 1024
MAX_LINES = 200
MAX_LINE_CHARS = 2000
MAX_WORDS_CHARS = 200

_FATAL = "Fatal Python error: "
_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+)(?:,)? in (\S+)')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)):?(?: |$)")
_REPRESENTED = re.compile(r"\b(\w+(?:Error|Exception))\(.*\)")
_LAST_WORDS = re.compile(r"^\S+ (?:ERROR|CRITICAL)\s+\[[^\]]*\] vllm_obs\.engine\.child_main: (.*)$")


class Trace(NamedTuple):
    """A place in code where something ended. `kind` is the exception's type, or the signal's words for a crash."""

    kind: str
    place: str


def crash_of(run_dir: Path, role: str, started_wall_ns: int = 0) -> tuple[Trace, str] | None:
    """What faulthandler wrote of a crash of this process (the file may hold earlier ones), and all of it."""
    path = run_dir / f"{role}.fault"
    try:
        if path.stat().st_mtime_ns < started_wall_ns:
            return None
    except OSError:
        return None
    _, mark, last = tail_text(path).rpartition(_FATAL)
    if not mark:
        return None
    words = last.partition("\n")[0].strip()
    current = last.partition("Current thread")[2] or last
    return Trace(words, _place(_FRAME.search(current))), mark + last


def exception_of(run_dir: Path, role: str) -> Trace | None:
    """The exception that the process logged last: its type and place, without its words."""
    kind, place = "", ""
    frames_at = -1
    lines = log_tail(run_dir, role)
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            kind, place, frames_at = "", "", number
        elif (frame := _FRAME.match(line)) and frames_at >= 0:
            place = _place(frame)
        elif frames_at >= 0 and not kind and (found := _EXCEPTION.match(line)):
            kind = found[1].rpartition(".")[2]
    return Trace(kind, place) if kind else None


def last_words_of(run_dir: Path, role: str) -> str:
    """The line with which an engine or a worker, which hold no text, ended itself; empty if it did not."""
    found = [match[1] for line in log_tail(run_dir, role) if (match := _LAST_WORDS.match(line))]
    return found[-1][:MAX_WORDS_CHARS] if found else ""


def without_quotes(words: str) -> str:
    """The words of an error of ours; of any other, which may quote what was asked for, its type is left."""
    kind, colon, _ = words.partition(": ")
    words = kind if colon and _EXCEPTION.match(f"{kind}:") else words
    return _REPRESENTED.sub(r"\1", words)


def log_tail(run_dir: Path, role: str, max_lines: int = MAX_LINES) -> list[str]:
    """The last lines of a process's log, oldest first."""
    lines: list[str] = []
    for name in (f"{role}.log", f"{role}.log.1"):
        if len(lines) < max_lines:
            lines = tail_text(run_dir / name).splitlines() + lines
    return [line[:MAX_LINE_CHARS] for line in lines[-max_lines:]]


def tail_text(path: Path) -> str:
    """The end of a text file, from the beginning of a line on; empty where there is none."""
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(max(0, num_bytes - MAX_TAIL_BYTES))
            content = file.read(MAX_TAIL_BYTES)
    except OSError:
        return ""
    if num_bytes > MAX_TAIL_BYTES:
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


def _place(frame: re.Match[str] | None) -> str:
    """engine/core.py:12 in step; a file of another package by its last two parts."""
    if frame is None:
        return ""
    path, line, function = frame.groups()
    parts = Path(path).parts
    begin = parts.index("vllm_obs") + 1 if "vllm_obs" in parts else len(parts) - 2
    return f"{'/'.join(parts[max(0, begin) :])}:{line} in {function}"
