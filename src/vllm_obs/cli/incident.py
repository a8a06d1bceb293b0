"""`vllm-obs incident [list|show]`: what went wrong in the last runs, read from what they left behind."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_obs.cli.incident_report import age, report
from vllm_obs.cli.live_run import runs_newest_first
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.run_dir import base_directory

if TYPE_CHECKING:
    from vllm_obs.cli.incident_runs import Known

EXIT_NOT_FOUND = 1
LATEST = "latest"
NS = 1e9

_USAGE = "vllm-obs incident [list | show [NAME]] [--run DIRECTORY] [--json]"
_DESCRIPTION = """\
Tell what went wrong: processes that died, engines that stood still, steps that failed.

list (or nothing) shows the incidents of all runs on this machine, the newest first. show tells everything about
one: NAME is its name or the beginning of it, by default the latest. Nothing needs to run; what an Observer could
not write down any more is put together from the flight recorders that the run left."""


def main(argv: list[str]) -> int:
    """Print them; 1 when the one asked for is not there."""
    options = _parser().parse(argv)
    action, name = options["action"], options["name"]
    if action not in ("list", "show"):
        raise ConfigError(
            f"{action:.32} is not list or show; vllm-obs incident show NAME tells about one incident"
        )
    if action == "list" and name:
        raise ConfigError(f"unexpected argument {name:.64}; vllm-obs incident show {name:.64} tells about one")
    return _list(options) if action == "list" else _show(options, name or LATEST)


def _list(options: dict[str, Any]) -> int:
    incidents = _known(options["run"])
    if options["json"]:
        say(json.dumps([{**known.document, "directory": str(known.run)} for known in incidents], indent=2))
    elif incidents:
        now = time.time()
        rows = [_row(known, now) for known in incidents]
        say("\n\n".join([*rows, "vllm-obs incident show [NAME] tells more; without a name, of the latest."]))
    else:
        say(_none_words(options["run"]))
    return 0


def _show(options: dict[str, Any], name: str) -> int:
    incidents = _known(options["run"])
    chosen = [known for known in incidents if name == LATEST or known.name.startswith(name)]
    exact = [known for known in chosen if known.name == name]
    found = next(iter(exact or chosen), None)
    content = found.read() if found is not None else None
    if found is None or content is None:
        unknown = f"there is no incident {name:.64}; vllm-obs incident lists them"
        print(f"vllm-obs: {unknown if incidents else _none_words(options['run'])}", file=sys.stderr)
        return EXIT_NOT_FOUND
    say(json.dumps(content, indent=2) if options["json"] else report(content, time.time()))
    return 0


def _row(known: "Known", now: float) -> str:
    cause = known.document["cause"].replace("_", " ")
    state = "; damaged" if "damaged" in known.document else ""
    state = "; not written down yet" if known.document.get("is_unwritten") else state
    head = f"{known.name}  ({cause}, {age(now - known.wall_at / NS)} ago, run {known.run.name}{state})"
    return f"{head}\n  {known.document['says']}"


def _known(run: str | None) -> "list[Known]":
    # Only here, so that `vllm-obs --help` need not load it.
    from vllm_obs.cli.incident_runs import holds_run, known_incidents

    if run is not None and not Path(run).is_dir():
        raise ConfigError(f"{run:.200} is no directory of a run")
    if run is not None and not holds_run(Path(run)):
        raise ConfigError(f"{run:.200} holds no run: no flight recorder (*.ring) and no incident is in it")
    return known_incidents(None if run is None else [Path(run)])


def _none_words(run: str | None) -> str:
    from vllm_obs.cli.incident_runs import holds_run

    base = base_directory()
    if not run and not any(holds_run(path) for path in runs_newest_first()):
        lacks = "holds no runs" if base.is_dir() else "is not there, so it holds no runs"
        return f"no incident is known: {base} {lacks}; VLLM_OBS_RUN_DIR names another place."
    where = f"in {run}" if run else f"under {base}"
    return (
        f"no incident is known {where}: no process of the last runs has died, stood still or failed a step. "
        "Runs are kept there until five newer ones have ended, their incidents for longer; VLLM_OBS_RUN_DIR names "
        "another place."
    )


def _parser() -> Parser:
    parser = Parser("vllm-obs incident", _USAGE, _DESCRIPTION)
    parser.add_argument("action", metavar="list|show", nargs="?", default="list", help="what to do [list]")
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the incident to show [latest]")
    parser.add_argument("--run", default=None, metavar="DIRECTORY", help="one run's directory [all runs]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
