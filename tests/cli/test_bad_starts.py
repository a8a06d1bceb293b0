"""A start that cannot work ends with 78, one plain line, and nothing left behind."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vllm_obs.cli.serve import SERVE_FLAGS
from vllm_obs.cli.settings import environment_name

DEADLINE_SECONDS = 15.0
"""Three times the promised five seconds."""


def serve(
    *words: str, env: dict[str, str] | None = None, seconds: float = DEADLINE_SECONDS
) -> subprocess.CompletedProcess[str]:
    names = {environment_name(flag) for flag in SERVE_FLAGS}
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-m", "vllm_obs", "serve", *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        env={**inherited, "HF_HUB_OFFLINE": "1", **(env or {})},
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("vllm-obs: ")
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--max-num-seq", "4"], ["--max-num-seq ", "--max-num-seqs"]),
        (["--tensor-parallel-size", "2"], ["a flag of vLLM that vllm-obs does not have"]),
        (["--port", "80x"], ["--port", "'80x' is not a whole number"]),
        (["--otlp-traces-endpoint", "http://[::1:4317"], ["--otlp-traces-endpoint", "'http://[::1:4317'"]),
        (["--config", "/no/such.yaml"], ["/no/such.yaml", "No such file"]),
        (["/no/such/model.gguf", "--port", "0"], ["/no/such/model.gguf"]),
        (["nobody/no-such-model", "--port", "0"], ["nobody/no-such-model"]),
        (["--port", "0", "--max-model-len", "1000000"], ["--max-model-len 1000000", "8192"]),
    ],
)
def test_bad_flags_and_models(words: list[str], parts: list[str]) -> None:
    assert_one_line(serve(*words), *parts)


def test_a_bad_environment() -> None:
    assert_one_line(serve(env={"VLLM_OBS_PORT": "eighty"}), "VLLM_OBS_PORT", "'eighty'")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line(serve("--host", "127.0.0.1", "--port", str(port)), f"port {port} on 127.0.0.1 is in use")


def test_a_corrupt_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)) * 40)
    assert_one_line(serve(str(path), "--port", "0"), "broken.gguf")


def test_a_cache_that_holds_no_request_of_full_length(short_path: Path) -> None:
    """Found by the engine's process once the weights are there: its one line comes through, and it is gone."""
    run_dir = str(short_path)
    words = ("--port", "0", "--host", "127.0.0.1", "--kv-cache-memory-bytes", "1M")
    done = serve(*words, env={"VLLM_OBS_RUN_DIR": run_dir}, seconds=90)
    assert done.returncode == 78, done.stderr
    assert done.stderr.splitlines()[-1].startswith("vllm-obs: ")
    assert "8192 tokens" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert processes_with(run_dir) == []


def processes_with(run_dir: str) -> list[int]:
    """Who still runs with this run directory in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("VLLM_OBS_RUN_DIR") == run_dir:
                found.append(process.pid)
    return found


def test_the_search_for_leftovers_finds_one() -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "VLLM_OBS_RUN_DIR": "/a/run"}) as child:
        assert processes_with("/a/run") == [child.pid]
        child.kill()
