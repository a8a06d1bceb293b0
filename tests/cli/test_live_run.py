"""Runs that live are found by their directories, newest first; where none answers, it is said what there is."""

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from observer_child import observer_over
from scripted_run import ScriptedRun

from vllm_obs.cli import live_run
from vllm_obs.cli.live_run import find_inspector, find_inspectors, is_alive
from vllm_obs.cli.main import main
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError
from vllm_obs.telemetry.observer_address import write_address

OLDER, NEWER = "20261129-120000-7", "20261129-120100-8"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "runs"
    base.mkdir()
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))
    return base


def make_run(base: Path, name: str) -> Path:
    """A run that served one request, named like itself."""
    (base / name).mkdir()
    with ScriptedRun(base / name) as run:
        run.start()
        run.serve(f"served by {name}")
        run.serve(f"other {name}", label="shared")
    return base / name


@contextmanager
def held(run: Path) -> Iterator[None]:
    """The run's root process lives."""
    lock_fd = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock_fd)


def test_all_that_live_are_found_and_asked(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with observer_over(make_run(base, OLDER)) as older, observer_over(make_run(base, NEWER)) as newer:
        assert find_inspectors() == [Inspector(newer.url, NEWER), Inspector(older.url, OLDER)]
        assert main(["explain", f"served by {OLDER}"]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"served by {OLDER}-0-0: ended\n")
        assert said.err == f"vllm-obs: run {OLDER} at {older.url}\n"
        assert main(["explain", "shared"]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"other {NEWER}-0-0 (shared): ended\n")
        assert f"run {OLDER} at {older.url} knows one of that name as well" in said.err
        assert main(["explain", "nobody"]) == 1
        asked = f"(asked: run {NEWER} at {newer.url}, run {OLDER} at {older.url})"
        assert capsys.readouterr().err.endswith(f"has the id or label 'nobody' {asked}\n")
        assert main(["top", "--once"]) == 0
        assert f"also alive: run {OLDER} at {older.url}" in capsys.readouterr().out
        assert main(["record", str(base / "saved.rec")]) == 0
        said = capsys.readouterr()
        assert said.out.endswith(f", of run {NEWER}\n")
        assert said.err == f"vllm-obs: run {OLDER} lives as well; name one with --run\n"


def test_an_api_servers_address_leads_to_its_inspector(base: Path) -> None:
    run = make_run(base, OLDER)
    with api_server() as port, observer_over(run, api_address=f"http://0.0.0.0:{port}") as observer:
        for url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}/"):
            assert find_inspector(url) == Inspector(observer.url, OLDER)
    with api_server() as port, pytest.raises(InspectorError, match="its own when it starts"):
        find_inspector(f"http://127.0.0.1:{port}")


@contextmanager
def api_server() -> Iterator[int]:
    """Its port; it answers as one of ours does what it does not know."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Unknown) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class Unknown(BaseHTTPRequestHandler):
    """There is nothing at any path."""

    def do_GET(self) -> None:
        body = b'{"error": {"message": "there is nothing at this path", "code": 404}}'
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def test_a_run_whose_observer_is_silent_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "PROBE_SECONDS", 0.1)
    run = make_run(base, OLDER)
    with socket.create_server(("127.0.0.1", 0)) as mute, held(run):
        write_address(run, f"http://127.0.0.1:{mute.getsockname()[1]}", "")
        assert is_alive(run)
        with pytest.raises(InspectorError, match=f"the Observer of run {OLDER} does not answer"):
            find_inspectors()


@pytest.mark.parametrize("command", [["top"], ["explain", "x"]])
def test_of_a_dead_run_it_is_said_how_to_look_at_it(
    command: list[str], base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(base, OLDER)
    with held(run):
        pass
    assert not is_alive(run)
    assert main(command) == 1
    assert capsys.readouterr().err.endswith(
        f"which has ended: vllm-obs record last.rec --run {run} && vllm-obs replay last.rec\n"
    )


def test_a_live_run_without_an_answer_is_recorded_before_dead_ones(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = make_run(base, OLDER)
    make_run(base, NEWER)
    with held(older):
        assert main(["record", str(base / "saved.rec")]) == 0
    assert f", of run {OLDER}\n" in capsys.readouterr().out
