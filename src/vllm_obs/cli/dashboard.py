"""`vllm-obs dashboard`: the inspector in the browser, over a live run, a recording, an incident or a demo."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_obs.cli.dashboard_child import DashboardOptions, address_of, bind_pages
from vllm_obs.cli.live_run import check_url, find_inspector
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.cli.server_flags import slo_words
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import whole_number

if TYPE_CHECKING:
    from vllm_obs.dashboard.replayed import Replayed
    from vllm_obs.dashboard.source import Source

EXIT_FAILED = 1
RECORDING = "recording"
"""The name of the recording in an incident's folder."""

_USAGE = "vllm-obs dashboard [--url URL | --recording FILE | --incident DIR | --demo] [FLAGS]"
_DESCRIPTION = """\
Show what a server does and why it is slow, live in the browser: the verdict, scheduler steps, KV blocks, requests,
processes, profiles, incidents. Without a source it follows the newest live run of this machine, also one that
starts later. The same pages open what vllm-obs record saved, and an incident's folder."""


def main(argv: list[str]) -> int:
    """Serve the pages until Ctrl-C."""
    options = _parser().parse(argv)
    source = _one_source(options)
    if source == "demo":
        return _demo(options)
    urls = [url for given in options["url"] or () for url in given.split(",") if url]
    for url in urls:
        check_url(url)
    place = DashboardOptions(options["host"], options["port"], options["trace_url"])
    # Streamlit and the web framework are loaded for this command only.
    from vllm_obs.dashboard.serve import Pages
    from vllm_obs.telemetry.recording_file import RecordingError

    with bind_pages(place, "--port") as listener:
        try:
            replayed = _replayed(options) if source in ("recording", "incident") else None
        except RecordingError as error:
            print(f"vllm-obs: {error}", file=sys.stderr)
            return EXIT_FAILED
        if replayed is not None:
            pages = Pages(replayed.source, place.host, place.trace_url, replayed.start)
        else:
            first, *others = [_live(url) for url in urls or [""]]
            pages = Pages(first, place.host, place.trace_url, others=others)
        say(f"Pages: {address_of(place, listener)} (Ctrl-C ends them)")
        pages.run(listener)
    return 0


def _live(url: str) -> "Source":
    """The server at that address, or of the newest live run."""
    from vllm_obs.dashboard.source import Source

    return Source(lambda: find_inspector(url or None).url, name=url.removeprefix("http://").rstrip("/"))


def _one_source(options: dict[str, Any]) -> str:
    given = [name for name in ("url", "recording", "incident", "demo") if options[name]]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two sources; the pages show one")
    return given[0] if given else ""


def _replayed(options: dict[str, Any]) -> "Replayed":
    from vllm_obs.dashboard.replayed import Replayed

    slo = options["slo"] or ""
    if options["recording"]:
        return Replayed(Path(options["recording"]), slo)
    folder = Path(options["incident"]).absolute()
    if not folder.is_dir():
        raise ConfigError(f"--incident {options['incident']:.200} is no directory")
    if not (folder / RECORDING).is_file():
        raise ConfigError(
            f"--incident {options['incident']:.200} holds no recording; vllm-obs incident lists those that do"
        )
    return Replayed(folder / RECORDING, slo, folder)


def _demo(options: dict[str, Any]) -> int:
    from vllm_obs.cli.demo import main as demo

    port = [] if options["port"] is None else ["--dashboard-port", str(options["port"])]
    return demo(["--dashboard", *port, "--host", options["host"]])


def _parser() -> Parser:
    parser = Parser("vllm-obs dashboard", _USAGE, _DESCRIPTION)
    what = parser.add_argument_group("What is shown")
    what.add_argument(
        "--url",
        default=None,
        action="append",
        metavar="URL",
        help="address of an API or of its inspector; of several servers each, which are shown side by side "
        "[the newest live run's]",
    )
    what.add_argument("--recording", default=None, metavar="FILE", help="what vllm-obs record saved")
    what.add_argument("--incident", default=None, metavar="DIR", help="an incident's folder")
    what.add_argument("--demo", action="store_true", help="a server without a model, under a load that changes")
    what.add_argument(
        "--slo",
        default=None,
        type=slo_words,
        metavar="TARGETS",
        help="hold a recording to these objectives [none]",
    )
    where = parser.add_argument_group("Where")
    where.add_argument("--host", default="127.0.0.1", metavar="HOST", help="where to listen [127.0.0.1]")
    where.add_argument(
        "--port",
        default=None,
        type=whole_number,
        metavar="PORT",
        help="port of the pages [8501, or a free one where it is taken]",
    )
    where.add_argument(
        "--trace-url",
        default="",
        metavar="URL",
        help="where traces can be read, with {trace_id} in it: http://jaeger:16686/trace/{trace_id} [none]",
    )
    return parser
