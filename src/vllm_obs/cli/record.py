"""`vllm-obs record FILE`: saves the last records of a run, alive or dead, from its rings into one file."""

import sys
from pathlib import Path

from vllm_obs import __version__
from vllm_obs.cli.live_run import find_inspectors, is_alive, runs_newest_first
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import number
from vllm_obs.telemetry.inspect_client import InspectorError

EXIT_FAILED = 1
NS = 1_000_000_000

_USAGE = "vllm-obs record FILE [--last 60s] [--run DIRECTORY]"
_DESCRIPTION = """\
Save the facts of the last seconds of a run: every step, request and block, never a prompt or a completion.

vllm-obs replay FILE shows them again, on any machine. A run that has died is recorded up to its last record."""
_NOTABLE_SECONDS = 0.1
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def main(argv: list[str]) -> int:
    """Write the file and say what is in it."""
    options = _parser().parse(argv)
    last_seconds = span_seconds(options["last"])
    # Only here, so that `vllm-obs --help` need not load it.
    from vllm_obs.telemetry.recording import save_recording
    from vllm_obs.telemetry.recording_file import RecordingError

    try:
        run = _run_directory(options["run"])
        saved = save_recording(run, Path(options["file"]), int(last_seconds * NS), __version__)
    except (RecordingError, InspectorError) as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_FAILED
    lost = f", {saved.num_lost} lost before they were saved" if saved.num_lost else ""
    more = saved.seconds > last_seconds + _NOTABLE_SECONDS
    whole = f" (the last {last_seconds:g} s, and back to the beginning of the requests in them)" if more else ""
    counts = f"{saved.num_records} records of {saved.seconds:.1f} s{whole}, {saved.num_bytes} bytes{lost}"
    say(f"{options['file']}: {counts}, of run {run.name}")
    return 0


def span_seconds(text: str) -> float:
    """60s, 5m, 1h or 90 as seconds. Raises ConfigError."""
    unit = _UNITS.get(text[-1:])
    try:
        seconds = number(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"--last {text[:64]!r} is not a time between 0 and 24h, such as 60s, 5m or 1h")
    return seconds


def _run_directory(named: str | None) -> Path:
    """The run that was named, else the newest with a live inspector, else the newest of all with rings."""
    if named:
        return Path(named)
    runs = {run.name: run for run in runs_newest_first()}
    try:
        live = [inspector.run for inspector in find_inspectors()]
    except InspectorError:
        live = []
    # One whose Observer does not answer lives all the same.
    silent = [name for name, run in runs.items() if name not in live and is_alive(run)]
    with_rings = [name for name, run in runs.items() if any(run.glob("*.ring"))]
    chosen, *others = [*live, *silent] or with_rings[:1] or [""]
    if not chosen:
        raise InspectorError("there is no run with rings; name its directory with --run")
    if others:
        print(f"vllm-obs: run {', '.join(others)} lives as well; name one with --run", file=sys.stderr)
    return runs[chosen]


def _parser() -> Parser:
    parser = Parser("vllm-obs record", _USAGE, _DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="where to save")
    parser.add_argument("--last", default="60s", metavar="SPAN", help="how far back: 60s, 5m, 1h [60s]")
    parser.add_argument("--run", default=None, metavar="DIRECTORY", help="the run's directory [the newest]")
    return parser
