"""`vllm-obs profile`: takes a profile of a running server and prints where the time went."""

import sys
import time
from pathlib import Path
from typing import Any

from vllm_obs.cli.live_run import find_inspector
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.cli.profile_download import check_writable, download
from vllm_obs.cli.profile_tables import profile_words
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import number, whole_number
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

EXIT_FAILED = 1
POLL_SECONDS = 0.25
WRITE_SECONDS = 150.0
"""How long after its time the files may take."""
MERGE_SECONDS = 15.0
KINDS = ("operators", "samples")

_USAGE = (
    "vllm-obs profile [--seconds S] [--steps N] [--kind operators|samples] [--sampler auto|py-spy|in-process] "
    "[--rate HZ] [--output DIRECTORY] [--url URL]"
)
_DESCRIPTION = """\
Profile a running server while it serves: nothing is restarted and no request fails.

operators: each step of the workers, operator by operator, as a table and a trace for Perfetto.
samples: the stacks of all processes of the server, many times a second."""


def main(argv: list[str]) -> int:
    """Order the profile, wait, and print it; 1 when there is none, or nothing ran that it could show."""
    options = _parser().parse(argv)
    body = _order(options)
    output = Path(options["output"]) if options["output"] else None
    try:
        inspector = find_inspector(options["url"])
        if output is not None:
            check_writable(output)
        begun = inspector.post("/inspect/profile", body)
        print(f"Profiling {inspector.words} ({_bounds(body)}) …", file=sys.stderr, flush=True)
        profile = _wait(inspector, begun["profile"], body["seconds"])
    except InspectorError as error:
        return _fail(error)
    saved, failure = _copied(inspector, profile, output)
    say("\n".join(profile_words(profile, saved)))
    if failure is not None:
        return _fail(failure)
    if profile["operators"] and not any(table["num_steps"] for table in profile["operators"]):
        return _fail(InspectorError(f"no step ran in {body['seconds']:g} s, so there is nothing to show"))
    return 0 if profile["state"] == "written" else EXIT_FAILED


def _copied(
    inspector: Inspector, profile: dict[str, Any], output: Path | None
) -> tuple[Path | None, InspectorError | None]:
    """Where the files were copied to, or why they were not; what was profiled is shown all the same."""
    if output is None or not profile["files"]:
        return None, None
    try:
        return download(inspector, profile, output), None
    except InspectorError as error:
        return None, InspectorError(f"{error}; they are in {profile['directory']}")


def _fail(error: InspectorError) -> int:
    print(f"vllm-obs: {error}", file=sys.stderr)
    return EXIT_FAILED


def _order(options: dict[str, Any]) -> dict[str, Any]:
    """The order in JSON. Raises ConfigError; the server has the last word on bounds."""
    try:
        body = {"kind": options["kind"], "seconds": number(options["seconds"])}
        if options["steps"] is not None:
            body["steps"] = whole_number(options["steps"])
        if options["rate"] is not None:
            body["rate_hz"] = number(options["rate"])
        if options["sampler"] is not None:
            body["sampler"] = options["sampler"]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if options["kind"] not in KINDS:
        raise ConfigError(f"--kind {options['kind']:.64} is not one of {', '.join(KINDS)}")
    if options["output"] and Path(options["output"]).exists() and not Path(options["output"]).is_dir():
        raise ConfigError(f"--output {options['output']:.256} is not a directory")
    return body


def _bounds(body: dict[str, Any]) -> str:
    seconds = f"{body['seconds']:g} s"
    return f"{seconds}, {body['steps']} steps at most" if "steps" in body else seconds


def _wait(inspector: Inspector, name: str, seconds: float) -> dict[str, Any]:
    """The profile once its files are written. Raises InspectorError when they are not in time."""
    deadline = time.monotonic() + seconds + WRITE_SECONDS
    merged_by = 0.0
    while time.monotonic() < deadline:
        profile: dict[str, Any] = inspector.get(f"/inspect/profiles/{name}")
        is_over = profile["state"] != "running"
        merged_by = merged_by or (time.monotonic() + MERGE_SECONDS if is_over else 0.0)
        is_merged = profile["kind"] != "samples" or profile["samples"] is not None or not profile["files"]
        if is_over and (is_merged or time.monotonic() > merged_by):
            return profile
        time.sleep(POLL_SECONDS)
    raise InspectorError(f"the profile {name} has not been written within {WRITE_SECONDS:g} s after its time")


def _parser() -> Parser:
    parser = Parser("vllm-obs profile", _USAGE, _DESCRIPTION)
    parser.add_argument("--seconds", default="5", metavar="S", help="how long at most [5]")
    parser.add_argument("--steps", default=None, metavar="N", help="how many steps at most, of operators [200]")
    parser.add_argument("--kind", default="operators", metavar="KIND", help="operators or samples [operators]")
    parser.add_argument(
        "--sampler", default=None, metavar="WHO", help="who takes samples: py-spy, in-process or auto [auto]"
    )
    parser.add_argument("--rate", default=None, metavar="HZ", help="how many samples a second [99]")
    parser.add_argument("--output", default=None, metavar="DIRECTORY", help="copy the files there")
    parser.add_argument(
        "--url", default=None, metavar="URL", help="the inspector's address [the newest live run's]"
    )
    return parser
