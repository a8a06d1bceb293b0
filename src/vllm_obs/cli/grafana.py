"""`vllm-obs grafana export DIR`: writes the boards, rules and alerts for one's own Prometheus and Grafana."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.engine.errors import ConfigError

if TYPE_CHECKING:
    from vllm_obs.grafana.settings import BoardSettings

EXIT_FAILED = 1
MAX_NAMED = 5

_USAGE = "vllm-obs grafana export DIR [--datasource UID] [--inspector-url URL] [--trace-url URL] [--force]"
_DESCRIPTION = """\
Write what watches the server with Prometheus and Grafana: boards and their provisioning, a configuration of
Prometheus, recording rules, alerts, and a compose.yml for all of it. No server needs to run.

Files that are there with something else in them are kept, and nothing is written, unless --force is given."""


def main(argv: list[str]) -> int:
    """Write them; 1 where that cannot be, or would destroy something."""
    options = _parser().parse(argv)
    if options["action"] != "export":
        raise ConfigError(f"vllm-obs grafana cannot {options['action']:.32}; it can export")
    # Only here, so that `vllm-obs --help` need not load it.
    from vllm_obs.grafana.export import differing, exported_files, write_files

    directory, settings = Path(options["directory"]), _settings(options)
    try:
        files = exported_files(settings)
        changed = [] if options["force"] else differing(directory, files)
        if not changed:
            write_files(directory, files)
    except OSError as error:
        return _fail(f"{error.filename or directory}: {error.strerror or error}")
    if changed:
        return _fail(_changed_words(directory, changed))
    say(_done_words(directory, files, settings))
    return 0


def _settings(options: dict[str, Any]) -> "BoardSettings":
    from vllm_obs.grafana.settings import BoardSettings

    given = {
        name: options[name] for name in ("datasource", "inspector_url", "trace_url") if options[name] is not None
    }
    try:
        return BoardSettings(**given)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _done_words(directory: Path, files: dict[str, str], settings: "BoardSettings") -> str:
    num_boards = sum(name.startswith("dashboards/") for name in files)
    lines = [
        f"{directory}: {len(files)} files, {num_boards} of them boards.",
        f"Prometheus: prometheus --config.file={directory}/prometheus.yml --enable-feature=exemplar-storage",
        f"Grafana: mount or link {directory}/provisioning as its provisioning directory, and start it with "
        f"VLLM_OBS_BOARDS={directory.absolute()}/dashboards; or import the files of dashboards/ by hand.",
    ]
    if settings.has_own_datasource:
        lines.append(f"The boards ask data source {settings.datasource}; none is provisioned.")
    return "\n".join(lines)


def _changed_words(directory: Path, changed: list[str]) -> str:
    named = ", ".join(changed[:MAX_NAMED])
    more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
    return f"{directory} has other files than would be written: {named}{more}; --force overwrites them"


def _fail(line: str) -> int:
    print(f"vllm-obs: {line}", file=sys.stderr, flush=True)
    return EXIT_FAILED


def _parser() -> Parser:
    parser = Parser("vllm-obs grafana", _USAGE, _DESCRIPTION)
    parser.add_argument("action", metavar="export", help="what to do")
    parser.add_argument("directory", metavar="DIR", help="where to write; made where it is not there")
    parser.add_argument(
        "--datasource",
        default=None,
        metavar="UID",
        help="uid of the Prometheus data source that Grafana has already [one of our own is provisioned]",
    )
    parser.add_argument(
        "--inspector-url",
        default=None,
        metavar="URL",
        help="where vllm-obs dashboard is, for the links of panels [http://localhost:8501]",
    )
    parser.add_argument(
        "--trace-url",
        default=None,
        metavar="URL",
        help="where a trace is shown, with {trace_id} in it [Grafana, from Jaeger]",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")
    return parser
