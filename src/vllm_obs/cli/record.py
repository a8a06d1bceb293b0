"""`vllm-obs record FILE`: saves the last records of a run, alive or dead, from its rings into one file."""

import sys
from pathlib import Path

from vllm_obs import __version__
from vllm_obs.cli.live_run import InspectorError, find_inspector, runs_newest_first
from vllm_obs.cli.parser import Parser
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import number

EXIT_FAILED = 1
NS = 1_000_000_000

_USAGE = "vllm-obs record FILE [--last 60s] [--run DIRECTORY]"
_DESCRIPTION = """\
Save the facts of the last seconds of a run: every step, request and block, never a prompt or a completion.

vllm-obs replay FILE shows them again, on any machine. A run that has died is recorded up to its last record."""
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
    print(
        f"{options['file']}: {saved.num_records} records of {saved.seconds:.1f} s, {saved.num_bytes} bytes{lost}"
    )
    return 0


def span_seconds(text: str) -> float:
    """60s, 5m, 1h or 90 as seconds. Raises ConfigError."""
    unit = _UNITS.get(text[-1:])
    try:
        seconds = number(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"{text[:64]!r} is not a time between 0 and 24h, such as 60s, 5m or 1h")
    return seconds


def _run_directory(named: str | None) -> Path:
    """The run that was named, else the newest with a live inspector, else the newest of all with rings."""
    if named:
        return Path(named)
    try:
        name = find_inspector().get("/inspect/version")["run"]
        return next(run for run in runs_newest_first() if run.name == name)
    except (InspectorError, StopIteration):
        with_rings = [run for run in runs_newest_first() if any(run.glob("*.ring"))]
        if not with_rings:
            raise InspectorError("there is no run with rings; name its directory with --run") from None
        return with_rings[0]


def _parser() -> Parser:
    parser = Parser("vllm-obs record", _USAGE, _DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="where to save")
    parser.add_argument("--last", default="60s", metavar="SPAN", help="how far back: 60s, 5m, 1h [60s]")
    parser.add_argument("--run", default=None, metavar="DIRECTORY", help="the run's directory [the newest]")
    return parser
