"""Help is complete, quick to load, and the flags page is what the tables say."""

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_obs import __version__
from vllm_obs.cli.flag_pages import flags_page
from vllm_obs.cli.main import COMMANDS, main
from vllm_obs.cli.serve import SERVE_FLAGS

HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "zmq", "numpy", "tokenizers", "yaml", "pydantic"}


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vllm-obs {__version__}\n"
    assert main(["version"]) == 0
    assert "torch        2." in capsys.readouterr().out


def test_help_shows_each_flag_once_with_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for flag in SERVE_FLAGS:
        shown = f"  --[no-]{flag.option[2:]}" if flag.kind == "pair" else f"  {flag.option} "
        assert (out + " ").count(shown) == (0 if flag.is_hidden else 1), flag.name
    for group in ("Model", "Engine", "Cache", "Scheduler", "Server", "Observability", "Logging"):
        assert f"\n{group}:\n" in out


@pytest.mark.parametrize("command", [["serve", "--help"], ["bench", "serve", "--help"], ["--help"]])
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    script = f"import sys; from vllm_obs.cli.main import main\ntry: main({command})\nexcept SystemExit: pass\n"
    script += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & HEAVY


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 78
    assert capsys.readouterr().err == "vllm-obs: there is no command serv (nearest: serve); see vllm-obs --help\n"


def test_the_flags_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "flags.md"
    assert page.read_text() == flags_page(), "run: python -m vllm_obs.cli.flag_pages > docs/flags.md"


def test_explain_says_by_what_a_request_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    out = capsys.readouterr().out
    assert all(word in out for word in ("chatcmpl-", "X-Request-Id", "traceparent"))
