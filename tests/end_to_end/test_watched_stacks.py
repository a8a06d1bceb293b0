"""Stacks are taken from real processes under load, again and again, and no process nor request takes harm."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from observed_server import ObservedServer, await_that, synthetic
from serving import Server, serving

TITLES = {"APIServer_0", "EngineCore_DP0", "Worker_TP0", "Observer"}
NUM_LOOPS, NUM_TOKENS = 2, 40
MP = ("--distributed-executor-backend", "mp")


class Load:
    """Requests without end in NUM_LOOPS threads, one at a time in each, until the block is left."""

    def __init__(self, server: Server) -> None:
        self.num_answered = 0
        self.failures: list[Any] = []
        self._server = server
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(NUM_LOOPS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        await_that(lambda: self.num_answered)
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self) -> None:
        body = {"prompt": "CANARY once", "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0}
        while not self._is_over.is_set():
            try:
                status, reply = self._server.request("POST", "/v1/completions", body)
            except (OSError, http.client.HTTPException) as error:
                status, reply = 0, repr(error)
            self.num_answered += 1
            if status != 200 or reply["usage"]["completion_tokens"] != NUM_TOKENS:
                self.failures.append((status, reply))
                return


class Looker:
    """Takes the stacks of all processes over the inspector."""

    def __init__(self, server: Server) -> None:
        server.wait_observed()
        self._address = server.inspector

    def look(self, _: int = 0) -> dict[str, dict[str, Any]]:
        """By its title what each process showed."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            connection.request("POST", "/inspect/stacks", b"{}", {"content-type": "application/json"})
            reply = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return {row["title"]: row for row in reply["processes"]}


def look_under_load(server: Server, num_looks: int, num_parallel: int) -> tuple[int, list[dict[str, Any]]]:
    """How many requests were answered, and each process's row of each look; nothing has died or failed."""
    looker = Looker(server)
    pids = {child.pid for child in server.family}
    with Load(server) as load:
        looks = [looker.look() for _ in range(num_looks)]
        with ThreadPoolExecutor(10) as pool:
            looks += list(pool.map(looker.look, range(num_parallel)))
    assert load.failures == []
    assert server.process.poll() is None
    assert {child.pid for child in server.family if child.is_running()} == pids
    assert [set(rows) for rows in looks] == [TITLES] * (num_looks + num_parallel)
    return load.num_answered, [row for rows in looks for row in rows.values()]


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    """Its worker is a process of its own."""
    with synthetic(*MP) as server:
        yield server


def test_looks_in_a_row_and_at_once_harm_nobody(server: ObservedServer) -> None:
    _, rows = look_under_load(server.server, num_looks=60, num_parallel=10)
    assert {(row["how"], row["says"]) for row in rows} == {("in-process", "")}
    assert {row["threads"][0]["name"] for row in rows} == {"MainThread"}
    texts = {title: "".join(row["text"] for row in rows if row["title"] == title) for title in TITLES}
    assert "worker_process.py" in texts["Worker_TP0"]
    assert "observer_main.py" in texts["Observer"]
    assert "CANARY" not in "".join(texts.values())


@pytest.mark.long
def test_hundreds_of_looks_at_the_default_model_harm_nobody(base: Path) -> None:
    env = {"VLLM_OBS_RUN_DIR": str(base)}
    with serving(*MP, env=env) as server:
        num_answered, rows = look_under_load(server, num_looks=500, num_parallel=100)
    hows = [(row["title"], row["how"]) for row in rows if row["how"] != "in-process"]
    print(f"{num_answered} requests answered, {len(rows)} stacks, of which from outside: {hows}")
    assert len(hows) < len(rows) / 100  # on a machine that is crowded one may be late
    assert not [path for path in base.rglob("*.fault") if path.stat().st_size]
