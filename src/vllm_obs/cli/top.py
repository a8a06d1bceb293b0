"""`vllm-obs top`: a live view of a running server in the terminal, or one look at it as text or JSON."""

import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vllm_obs.cli.live_run import find_inspectors
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.cli.top_cells import plain
from vllm_obs.cli.top_screen import Frame, Look, screen
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import number
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError
from vllm_obs.telemetry.verdict_names import IDLE, WELL

EXIT_UNREACHABLE = 1
MIN_INTERVAL_SECONDS = 0.2
LOOK_SECONDS = 3.0
"""How long the inspector may take for an answer; keys wait meanwhile."""
MAX_LOOKED_AT = 200
"""So many requests are asked for, the newest, to choose from."""

VERDICT_WINDOW = "10s"
"""Short, so that what begins is told at once."""
QUANTILE_WINDOW = "1m"
"""Where the short time has nothing to tell, the verdict is that of the latencies' time."""

_USAGE = "vllm-obs top [--url URL] [--interval SECONDS] [--once] [--json]"
_DESCRIPTION = """\
Show what a running server does and why it is slow: requests, who waits and why, KV blocks, the engine's loop,
latencies, processes.

Keys: q ends, p holds the picture. Without a terminal it prints one look and ends."""
_KEYS = "q ends, p holds"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def main(argv: list[str]) -> int:
    """Run until q or Ctrl-C; 1 when there is no server to look at."""
    options = _parser().parse(argv)
    if options["interval"] < MIN_INTERVAL_SECONDS:
        raise ConfigError(f"--interval {options['interval']:g}: {MIN_INTERVAL_SECONDS:g} s or more is allowed")
    try:
        found, *others = find_inspectors(options["url"])
        inspector = found._replace(timeout_seconds=LOOK_SECONDS)
        first = take_look(inspector)
    except InspectorError as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    frame = Frame(inspector.url, 0, others=tuple(other.words for other in others))
    if options["json"]:
        say(json.dumps(first._asdict() | {"url": inspector.url}))
    elif options["once"] or not (sys.stdout.isatty() and sys.stdin.isatty()):
        columns = shutil.get_terminal_size((110, 50)).columns
        lines = screen(first, replace(frame, columns=columns))
        say("\n".join(lines if sys.stdout.isatty() else map(plain, lines)))
    else:
        _live(inspector, first, frame, options["interval"])
    return 0


def take_look(inspector: Inspector) -> Look:
    """What the screen shows, as it is now. Raises InspectorError."""
    return Look(
        state=inspector.get("/inspect/state"),
        requests=inspector.get("/inspect/requests", state="live", limit=MAX_LOOKED_AT)["requests"],
        quantiles=inspector.get("/inspect/quantiles", window=QUANTILE_WINDOW),
        processes=inspector.get("/inspect/processes")["processes"],
        verdict=take_verdict(inspector),
    )


def take_verdict(inspector: Inspector) -> dict[str, Any]:
    """That of the last seconds; where nothing was wrong in them, what was in the latencies' time."""
    verdict: dict[str, Any] = inspector.get("/inspect/verdict", window=VERDICT_WINDOW)
    if verdict["word"] not in (WELL, IDLE):
        return verdict
    longer: dict[str, Any] = inspector.get("/inspect/verdict", window=QUANTILE_WINDOW)
    return longer if longer["findings"] else verdict


def _live(inspector: Inspector, look: Look, frame: Frame, interval_seconds: float) -> None:
    is_held, trouble, looked_at = False, "", time.monotonic()
    with _terminal():
        while True:
            _draw(look, replace(frame, trouble=trouble), "held: p goes on" if is_held else _KEYS)
            key = _key_within(interval_seconds)
            if key in ("q", "\x03"):
                return
            is_held ^= key == "p"
            if not is_held:
                try:
                    look, trouble, looked_at = take_look(inspector), "", time.monotonic()
                except InspectorError as error:
                    trouble = f"Below is how it was {time.monotonic() - looked_at:.0f} s ago; {error}."


def _draw(look: Look, frame: Frame, note: str) -> None:
    columns, rows = shutil.get_terminal_size()
    # The last row is the note's.
    lines = screen(look, replace(frame, columns=columns, rows=rows - 1))
    body = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{body}{note[:columns]}{_CLEAR_LINE}{_CLEAR_BELOW}")
    sys.stdout.flush()


def _key_within(seconds: float) -> str:
    """The key pressed within that time, or an empty string after it."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # Not through sys.stdin's buffer, where select would not see what is left.
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace")[-1:] if ready else ""


@contextmanager
def _terminal() -> Iterator[None]:
    """The other screen, keys one by one; as it was at the end."""
    before: list[Any] = termios.tcgetattr(sys.stdin)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _parser() -> Parser:
    parser = Parser("vllm-obs top", _USAGE, _DESCRIPTION)
    parser.add_argument(
        "--url", default=None, metavar="URL", help="the inspector's address [the newest live run's]"
    )
    parser.add_argument("--interval", type=number, default=1.0, metavar="SECONDS", help="time between looks [1]")
    parser.add_argument("--once", action="store_true", help="print one look and end")
    parser.add_argument("--json", action="store_true", help="print one look as JSON and end")
    return parser
