"""`vllm-obs startup`: where the time to ready went and where memory is, of a live run or of the last one."""

import json
import sys
from pathlib import Path
from typing import Any

from vllm_obs.cli.live_run import find_inspectors, is_alive, runs_newest_first
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.cli.startup_memory import memory_lines
from vllm_obs.cli.startup_waterfall import waterfall_lines
from vllm_obs.telemetry.inspect_client import InspectorError

EXIT_NOT_FOUND = 1

_USAGE = "vllm-obs startup [--url URL] [--run DIRECTORY] [--json]"
_DESCRIPTION = """\
Show where the time of a start went, process by process, and where memory is.

It asks the live run; where none lives it reads what the last one left behind. █ is what being ready hung on."""


def main(argv: list[str]) -> int:
    """Print it; 1 when there is no run to tell of."""
    options = _parser().parse(argv)
    try:
        views = _views(options["url"], options["run"])
    except InspectorError as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_NOT_FOUND
    if options["json"]:
        say(json.dumps(views, indent=2))
    else:
        say("\n".join([*waterfall_lines(views["startup"]), "", *memory_lines(views["memory"])]))
    return 0


def _views(url: str | None, run: str | None) -> dict[str, Any]:
    if run:
        return _read(Path(run))
    try:
        inspector, *others = find_inspectors(url)
    except InspectorError:
        ended = next((path for path in runs_newest_first() if any(path.glob("*.ring"))), None)
        if url or ended is None:
            raise
        return _read(ended)
    if others:
        also = ", ".join(other.words for other in others)
        print(f"vllm-obs: this is {inspector.words}; {also} lives as well", file=sys.stderr)
    return {name: inspector.get(f"/inspect/{name}") for name in ("startup", "memory")}


def _read(run: Path) -> dict[str, Any]:
    """What a run left behind. Raises InspectorError."""
    # Only here: it loads what the Observer loads.
    from vllm_obs.telemetry.recording_file import RecordingError
    from vllm_obs.telemetry.startup_offline import read_startup

    state = "lives" if is_alive(run) else "has ended"
    print(f"vllm-obs: run {run.name} {state}; this is from what it recorded", file=sys.stderr)
    try:
        return read_startup(run)
    except RecordingError as error:
        raise InspectorError(str(error)) from None


def _parser() -> Parser:
    parser = Parser("vllm-obs startup", _USAGE, _DESCRIPTION)
    parser.add_argument("--url", default=None, metavar="URL", help="the inspector's address [the live run's]")
    parser.add_argument("--run", default=None, metavar="DIRECTORY", help="read what this run left behind")
    parser.add_argument("--json", action="store_true", help="what the inspector says, whole")
    return parser
