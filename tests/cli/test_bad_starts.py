"""A start that cannot work ends with 78, one plain line, and nothing left behind."""

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_start import DEADLINE_SECONDS, assert_one_line, environment, processes_with, serve, serve_command
from ends_with_pytest import ends_with_pytest
from serving import free_port


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--max-num-seq", "4"], ["--max-num-seq ", "--max-num-seqs"]),
        (["--decode-context-parallel-size", "2"], ["a flag of vLLM that vllm-obs does not have"]),
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


def test_of_several_starts_at_one_port_at_once_one_is_up(short_path: Path) -> None:
    port, env = str(free_port()), environment({"VLLM_OBS_RUN_DIR": str(short_path)})
    command = serve_command("--load-format", "synthetic", "--host", "127.0.0.1", "--port", port)
    pipe = subprocess.PIPE
    starts = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) for _ in range(4)]
    for start in starts:
        ends_with_pytest(start)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(ended := [start for start in starts if start.poll() is not None]) < len(starts) - 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (up,) = (start for start in starts if start.poll() is None)
        for start in ended:
            out, err = start.communicate()
            assert_one_line(
                subprocess.CompletedProcess(command, start.returncode, out, err),
                f"port {port} on 127.0.0.1 is in use",
            )
        assert up.stdout is not None
        assert any(line.startswith("Ready in ") for line in iter(up.stdout.readline, ""))
        up.terminate()
        up.communicate(timeout=40)
        assert up.returncode == 0
    finally:
        for start in starts:
            start.kill()
            start.communicate()


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda place, other: place.symlink_to(other), "is not a directory of this user"),
        (lambda place, other: place.touch(), "cannot make the directory"),
        (lambda place, other: (place.mkdir(), place.chmod(0o777)), "can be written by other users"),
        (lambda place, other: (place.mkdir(), os.chown(place, 65_534, 65_534)), "is not a directory of this user"),
    ],
    ids=["link", "file", "writable", "of somebody else"],
)
def test_a_place_for_runs_that_is_not_ours_alone_is_not_used(
    short_path: Path, make: Callable[[Path, Path], object], said: str
) -> None:
    """Nor is anything in it read: a lock that is a pipe would hold up whoever opens it."""
    place, other = short_path / "runs", short_path / "other"
    other.mkdir()
    try:
        make(place, other)
    except PermissionError:
        pytest.skip("only root can give a directory away")
    if place.is_dir():
        trap = place / "20260101-000000-1"
        trap.mkdir()
        os.mkfifo(trap / "lock")
        (trap / "APIServer_0.ring").touch()
    done = serve("--load-format", "synthetic", "--port", "0", env={"VLLM_OBS_RUN_DIR": str(place)})
    assert_one_line(done, str(place), said)
    assert sorted(path.name for path in other.rglob("*")) in (
        [],
        ["20260101-000000-1", "APIServer_0.ring", "lock"],
    )


def test_the_search_for_leftovers_finds_one() -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "VLLM_OBS_RUN_DIR": "/a/run"}) as child:
        assert processes_with("/a/run") == [child.pid]
        child.kill()
