"""The `vllm-obs` command: loads only the subcommand asked for, and turns errors into one line and an exit code."""

import difflib
import os
import sys
from importlib import import_module

from vllm_obs import __version__
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.telemetry.console import tell

EXIT_CUT_OFF = 1

COMMANDS = {
    "serve": ("vllm_obs.cli.serve", "serve a model over the OpenAI API"),
    "demo": ("vllm_obs.cli.demo", "all of it alive without a model, under a load of its own"),
    "run-batch": ("vllm_obs.cli.run_batch", "answer a file of OpenAI requests"),
    "chat": ("vllm_obs.cli.chat", "talk to a running server"),
    "complete": ("vllm_obs.cli.complete", "let a running server complete texts"),
    "bench": ("vllm_obs.cli.bench.command", "measure a running server"),
    "dashboard": ("vllm_obs.cli.dashboard", "the live inspector in the browser"),
    "top": ("vllm_obs.cli.top", "what a running server does, live in the terminal"),
    "explain": ("vllm_obs.cli.explain", "where the time of one request went"),
    "startup": ("vllm_obs.cli.startup", "where the time to ready went, and where memory is"),
    "incident": ("vllm_obs.cli.incident", "what went wrong in the last runs, and what led to it"),
    "profile": ("vllm_obs.cli.profile", "where a running server's time goes: operators, or stacks"),
    "autotune": ("vllm_obs.cli.autotune", "the fastest configuration of each kernel on this GPU"),
    "grafana": ("vllm_obs.cli.grafana", "boards, rules and alerts for one's own Grafana and Prometheus"),
    "record": ("vllm_obs.cli.record", "save the last records of a run in a file"),
    "replay": ("vllm_obs.cli.replay", "the inspector over a saved recording"),
    "version": ("vllm_obs.cli.version", "versions of vllm-obs and what it runs on"),
}
"""Subcommand → (module with `main(argv) -> exit code`, what it is for)."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    argv = sys.argv[1:] if argv is None else argv
    _hold_standard_files()
    try:
        return _dispatch(argv)
    except ConfigError as error:
        return _fail(error, ConfigError.exit_code)
    except StartupError as error:
        return _fail(error, error.exit_code)
    except KeyboardInterrupt:
        return EXIT_CUT_OFF


def _hold_standard_files() -> None:
    """Nothing else is to be opened as 0, 1 or 2, where whoever started this process has closed them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    name, rest = argv[0], argv[1:]
    if name in ("-v", "-V", "--version"):
        print(f"vllm-obs {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"there is no command {name:.64}{_nearest(name)}; see vllm-obs --help")
    module, _ = COMMANDS[name]
    return int(import_module(module).main(rest))


def _usage() -> str:
    rows = [f"  {name:<10} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    lines = [
        "usage: vllm-obs COMMAND [ARGUMENTS]",
        "",
        "An LLM serving platform that explains itself.",
        "",
        "commands:",
    ]
    return "\n".join(
        [*lines, *rows, "", "vllm-obs COMMAND --help tells more; vllm-obs --version prints the version."]
    )


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f" (nearest: {close[0]})" if close else ""


def _fail(error: Exception, exit_code: int) -> int:
    tell(str(error))
    return exit_code
