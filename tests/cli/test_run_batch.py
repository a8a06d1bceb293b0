"""`vllm-obs run-batch` as people start it: bad words, standard streams, memory, Ctrl-C."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ends_with_pytest import ends_with_pytest

from vllm_obs.cli.main import main
from vllm_obs.cli.run_batch import BATCH_FLAGS, build_parser, read_settings, server_config

SYNTHETIC = ("--load-format", "synthetic", "--max-num-seqs", "32", "--max-model-len", "2048")
FAST_STEPS = '{"base_seconds": 0.001, "seconds_per_token": 0, "seconds_per_row": 0, "num_layers": 1}'


def line(number: int, url: str = "/v1/completions", num_blanks: int = 0) -> bytes:
    body = {"prompt": f"number {number}", "max_tokens": 2}
    fields = {"custom_id": str(number), "method": "POST", "url": url, "body": body}
    return json.dumps(fields).replace('"body": {', '"body": {' + " " * num_blanks).encode() + b"\n"


@pytest.fixture
def batch(short_path: Path) -> Iterator["Batch"]:
    running = Batch(short_path)
    yield running
    running.close()


class Batch:
    """A `vllm-obs run-batch` over the synthetic engine that reads what it is written."""

    def __init__(self, directory: Path) -> None:
        self.output = directory / "out.jsonl"
        self._stderr = (directory / "stderr").open("wb+")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm_obs", "run-batch", "-i", "-", "-o", str(self.output), *SYNTHETIC),
                *("--model-loader-extra-config", FAST_STEPS),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env={**os.environ, "VLLM_OBS_RUN_DIR": str(directory / "runs")},
        )
        ends_with_pytest(self.process)
        assert self.process.stdin is not None
        self.stdin = self.process.stdin

    def write(self, numbers: range) -> None:
        """Write lines of 16 kB from a thread: the pipe takes them as they are read."""

        def act() -> None:
            with contextlib.suppress(BrokenPipeError):
                for number in numbers:
                    self.stdin.write(line(number, num_blanks=16_000))
                self.stdin.flush()

        self._writer = threading.Thread(target=act)
        self._writer.start()

    def wait_answered(self, number: int) -> None:
        deadline = time.monotonic() + 120
        while self.num_answered() < number:
            assert time.monotonic() < deadline, self.stderr()
            assert self.process.poll() is None, self.stderr()
            time.sleep(0.05)

    def num_answered(self) -> int:
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def own_bytes(self) -> int:
        """Memory that is the API server's alone."""
        return int(psutil.Process(self.process.pid).memory_full_info().uss)

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._writer.join(10)
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self._stderr.close()


def test_memory_stays_flat_and_ctrl_c_keeps_what_is_answered(batch: Batch) -> None:
    batch.write(range(3000))
    batch.wait_answered(1000)
    after_1000 = batch.own_bytes()
    batch.wait_answered(3000)
    # 32 MB came in meanwhile; what is held at a time is under 1 MB.
    assert batch.own_bytes() - after_1000 < 16 << 20
    children = psutil.Process(batch.process.pid).children(recursive=True)
    batch.process.send_signal(signal.SIGINT)  # it waits for a line that does not come
    assert batch.process.wait(30) == 1, batch.stderr()
    assert psutil.wait_procs(children, timeout=10)[1] == []
    entries = [json.loads(entry) for entry in batch.output.read_bytes().splitlines()]
    assert {entry["custom_id"] for entry in entries} == {str(number) for number in range(3000)}
    assert {entry["response"]["status_code"] for entry in entries} == {200}
    assert "3000 lines answered, 0 of them with an error, in " in batch.stderr()


def test_standard_streams_hold_lines_alone(short_path: Path) -> None:
    lines = line(1) + b"{}\n" + line(2, "/v1/chat/completions") + line(3)
    done = subprocess.run(
        [sys.executable, "-m", "vllm_obs", "run-batch", "--input-file=-", "--output_file", "-", *SYNTHETIC],
        input=lines,
        capture_output=True,
        timeout=120,
        env={**os.environ, "VLLM_OBS_RUN_DIR": str(short_path), "VLLM_API_KEY": "not asked for"},
        check=False,
    )
    assert done.returncode == 1, done.stderr.decode()
    entries = {entry["custom_id"]: entry for entry in map(json.loads, done.stdout.splitlines())}
    statuses = {name: entry["response"]["status_code"] for name, entry in entries.items()}
    assert statuses == {"1": 200, None: 400, "2": 400, "3": 200}
    assert b"4 lines answered, 2 of them with an error, in " in done.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "-i and -o are needed"),
        (["-i", "in"], "-i and -o are needed"),
        (["-i", "/no/such", "-o", "out"], "--input-file /no/such: No such file"),
        (["-i", "/", "-o", "out"], "--input-file /: Is a directory"),
        (["-i", "https://x.example/in.jsonl", "-o", "out"], "only local files"),
        (["-i", "in", "-o", "s3://bucket/out"], "only local files"),
        (["-i", "in", "-o", "in"], "is the input file"),
        (["-i", "in", "-o", "/no/such/out"], "--output-file /no/such/out: No such file"),
        (["-i", "in", "-o", "out", "--port", "1"], "there is no flag --port"),
        (["-i", "in", "-o", "out", "--max-model-length", "9"], "(nearest: --max-model-len)"),
        (["-i", "in", "-o", "out", "--model", "/no/such.gguf"], "/no/such.gguf"),
        (["-i", "in", "-o", "out", "--enable-auto-tool-choice"], "needs --tool-call-parser"),
    ],
)
def test_a_batch_that_cannot_be_run_ends_with_78_and_one_line(
    words: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(line(1))
    assert main(["run-batch", *words]) == 78
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("vllm-obs: ")
    assert told.err.count("\n") == 1
    assert part in told.err
    assert Path("in").read_bytes() == line(1)
    assert not Path("out").exists()


def test_settings_come_from_where_those_of_serve_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("max-num-seqs: 3\nseed: 7\n")
    monkeypatch.setenv("VLLM_OBS_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    values = read_settings(["-i", "a", "-o", "b", "--config", str(config), "--dtype", "float32"])
    assert (values["max_num_seqs"], values["seed"], values["dtype"]) == (4, 7, "float32")
    assert server_config(values).api_keys == ()


def test_help_has_each_flag_and_none_of_a_listener() -> None:
    text = build_parser().format_help()
    assert "-i FILE, --input-file FILE" in text
    names = {flag.name for flag in BATCH_FLAGS}
    assert {"max_num_seqs", "tool_call_parser", "inspect_port", "slo", "config"} <= names
    assert not names & {"host", "port", "uds", "api_key", "root_path", "allowed_origins"}
