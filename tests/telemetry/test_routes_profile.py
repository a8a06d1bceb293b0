"""The inspector's profiles over a real Observer: ordered, listed, shown and downloaded, and nothing else."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.observer_pipe import PROFILE
from vllm_obs.telemetry.profile_control import ProfileOrder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded

TABLE = {"role": "Worker_TP0", "num_steps": 3, "operators": []}
FILES = ["Worker_TP0.operators.json", "Worker_TP0.trace.json.gz"]


class ProfilingServer:
    """An API server at the other end of the pipe, whose worker begins what is ordered and ends it when told."""

    def __init__(self, run: ScriptedRun, observer: ObserverChild, run_dir: Path) -> None:
        self.observer = observer
        self.told: list[dict[str, Any]] = []
        self._run = run
        self._run_dir = run_dir
        observer.child.on_message(PROFILE, self._take)

    def _take(self, order: dict[str, Any]) -> None:
        self.told.append(order)
        bounds = (order["steps"], float(order["seconds"]))
        begun = ProfileBegun(order["profile"], order["kind"], "Worker_TP0", 7, 0, *bounds, time.monotonic_ns())
        self._run.core.record(begun)

    def write(self, name: str) -> None:
        """The worker's files are there."""
        place = self._run_dir / "profiles" / name
        place.mkdir(parents=True)
        (place / FILES[0]).write_text(json.dumps(TABLE))
        (place / FILES[1]).write_bytes(b"packed")
        now = time.monotonic_ns()
        self._run.core.record(ProfileEnded(name, "operators", "Worker_TP0", 7, 0, 3, 0, now, now, FILES, ""))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilingServer]:
    run_dir = tmp_path_factory.mktemp("run")
    with ScriptedRun(run_dir) as run:
        run.start()
        with observer_over(run_dir) as observer:
            yield ProfilingServer(run, observer, run_dir)


def test_a_profile_is_ordered_and_read(server: ProfilingServer) -> None:
    ask = server.observer.ask
    begun = ask("/inspect/profile", "POST", body={"seconds": 2, "steps": 30})
    assert begun.status == 200, begun.body
    name = begun.json["profile"]
    assert server.told == [{"profile": name, **ProfileOrder("operators", 2, 30)._asdict()}]
    assert (begun.json["state"], begun.json["max_steps"], begun.json["files"]) == ("running", 30, [])
    again = ask("/inspect/profile", "POST", body={})
    assert (again.status, again.json["error"]["type"]) == (409, "conflict")

    server.write(name)
    row = server.observer.get(f"/inspect/profiles/{name}")
    assert (row["state"], row["operators"], row["samples"]) == ("written", [TABLE], None)
    assert [file["name"] for file in row["files"]] == FILES
    listed = server.observer.get("/inspect/profiles")["profiles"]
    assert [(one["profile"], one["state"]) for one in listed] == [(name, "written")]
    file = ask(f"/inspect/profiles/{name}/{FILES[1]}")
    assert (file.status, file.body) == (200, b"packed")
    assert f'filename="{FILES[1]}"' in file.headers["content-disposition"]


def test_files_that_no_record_tells_of_any_more_are_still_there(server: ProfilingServer, tmp_path: Path) -> None:
    place = tmp_path / "profiles" / "20260101-000000-operators"
    place.mkdir(parents=True)
    (place / FILES[0]).write_text(json.dumps(TABLE))
    with ScriptedRun(tmp_path) as run:
        run.start()
        with observer_over(tmp_path) as observer:
            (row,) = observer.get("/inspect/profiles")["profiles"]
            assert (row["profile"], row["kind"], row["state"]) == (place.name, "operators", "written")
            assert observer.get(f"/inspect/profiles/{place.name}")["operators"] == [TABLE]


@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "..",
        "../profiles",
        "%2e%2e",
        "..%2f..",
        "nothing/x.json",
        "%2e%2e/observer.checkpoint",
        "..%2f/x",
        "a/..%2fb",
        "%00/x",
    ],
)
def test_names_that_are_not_listed_are_404(server: ProfilingServer, path: str) -> None:
    reply = server.observer.ask(f"/inspect/profiles/{path}")
    assert (reply.status, reply.json["error"]["type"]) == (404, "not_found")


def test_only_json_from_here_is_an_order(server: ProfilingServer) -> None:
    server.told.clear()
    for kind, headers in (("text/plain", {}), ("application/json", {"origin": "http://evil.example"})):
        connection = http.client.HTTPConnection(server.observer.host, server.observer.port, timeout=30)
        try:
            connection.request("POST", "/inspect/profile", b"{}", {"content-type": kind, **headers})
            assert connection.getresponse().status in (403, 415)
        finally:
            connection.close()
    assert server.observer.ask("/inspect/profile", "POST", body={"seconds": -1}).status == 400
    assert server.observer.ask("/inspect/profile").status == 405
    assert server.told == []
