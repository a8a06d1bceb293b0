"""`vllm-obs replay FILE`: an Observer over a saved recording, with the same API as over a live run."""

import asyncio
import signal
import sys
from pathlib import Path

from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.cli.server_flags import slo_words
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import whole_number
from vllm_obs.telemetry.slo_targets import slo_doubt

EXIT_FAILED = 1
DEFAULT_PORT = 9000

_USAGE = "vllm-obs replay FILE [--host HOST] [--port PORT] [--slo TARGETS]"
_DESCRIPTION = """\
Serve the inspector API over a recording made by vllm-obs record.

vllm-obs top, vllm-obs explain and the dashboard show it as if it were live; time stands still at its end."""


def main(argv: list[str]) -> int:
    """Serve until Ctrl-C."""
    options = _parser().parse(argv)
    if not 0 <= options["port"] <= 65_535:
        raise ConfigError(f"--port {options['port']} is not a port")
    # Web framework and metrics library are loaded for this command only.
    from vllm_obs.telemetry.inspect_server import ListenError
    from vllm_obs.telemetry.recording_file import RecordingError

    try:
        if doubt := slo_doubt(options["slo"] or ""):
            print(f"vllm-obs: {doubt}", file=sys.stderr)
        asyncio.run(_serve(Path(options["file"]), options["host"], options["port"], options["slo"] or ""))
    except (RecordingError, ListenError) as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def _serve(path: Path, host: str, port: int, slo: str) -> None:
    from vllm_obs.telemetry.replay import open_replay

    service = open_replay(path, host, port, slo)
    try:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, service.end)
        server = await service.start()
        say(f"replaying {path} at {server.address}/ (Ctrl-C ends it)")
        try:
            await service.run()
        finally:
            await server.stop()
    finally:
        await service.close()


def _parser() -> Parser:
    parser = Parser("vllm-obs replay", _USAGE, _DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="a recording")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="where to listen [127.0.0.1]")
    parser.add_argument(
        "--port",
        default=DEFAULT_PORT,
        type=whole_number,
        metavar="PORT",
        help="or a free one if it is taken [9000]",
    )
    parser.add_argument(
        "--slo",
        default=None,
        type=slo_words,
        metavar="TARGETS",
        help="hold it to these objectives: ttft=0.5,tpot=50ms [none]",
    )
    return parser
