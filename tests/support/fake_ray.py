"""A Ray cluster in this process: actors are objects with a thread for each concurrency group."""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from vllm_obs.engine.executor.ray_port import ActorCallError, ActorLostError


class FakeActor:
    """One actor; `kill` is the death of its process."""

    def __init__(self, kind: type[Any], arguments: Sequence[Any], place: Any) -> None:
        self.place = place
        self._make = partial(kind, *arguments)
        self.calls: list[str] = []
        self.start_again()
        self._pending: list[Future[Any]] = []
        self.is_silent = False

    def start_again(self) -> None:
        """Another process, with what the first was made with."""
        self._pools = {name: ThreadPoolExecutor(1) for name in ("command", "news", "")}
        self.object = self._make()
        self.is_dead = False

    def call(self, method: str, arguments: Sequence[Any]) -> "Future[Any]":
        answer: Future[Any] = Future()
        self.calls.append(method)
        self._pending.append(answer)
        if self.is_dead:
            answer.set_exception(ActorLostError("ActorDiedError: The actor died"))
        else:
            pool = self._pools.get(method, self._pools[""])
            pool.submit(self._run, answer, method, arguments)
        return answer

    def _run(self, answer: "Future[Any]", method: str, arguments: Sequence[Any]) -> None:
        try:
            result = getattr(self.object, method)(*arguments)
        except Exception as error:
            self._settle(answer, error=ActorCallError(f"{type(error).__name__}: {error}"))
        else:
            self._settle(answer, result)

    def _settle(self, answer: "Future[Any]", result: Any = None, error: Exception | None = None) -> None:
        if self.is_silent or answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def kill(self) -> None:
        """Its process is gone, and with it its rank."""
        self.is_dead = True
        for answer in self._pending:
            if not answer.done():
                answer.set_exception(ActorLostError("ActorDiedError: The actor died"))
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        if stop := getattr(self.object, "stop", None):
            stop()


class FakeRay:
    """A RayPort over a cluster of `num_cpus`, of which one host has `num_on_one_host`."""

    def __init__(self, num_cpus: int = 4, num_free: int | None = None, num_on_one_host: int | None = None) -> None:
        self.num_cpus = num_cpus
        self.num_free = num_cpus if num_free is None else num_free
        self.num_on_one_host = num_cpus if num_on_one_host is None else num_on_one_host
        self.actors: list[FakeActor] = []
        self.observers: list[FakeActor] = []
        self.groups: list[tuple[int, bool]] = []
        self.removed: list[Any] = []
        self.is_connected = False

    def connect(self) -> None:
        self.is_connected = True

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        return {"CPU": self.num_cpus}, {"CPU": self.num_free}

    def largest_host(self, resource: str) -> float:
        return self.num_on_one_host

    def group(self, resource: str, num_places: int, is_one_host: bool) -> Any:
        self.groups.append((num_places, is_one_host))
        return len(self.groups) - 1

    def has_places(self, group: Any, wait_seconds: float) -> bool:
        deadline = time.monotonic() + wait_seconds
        while self.num_free < self.groups[group][0]:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        self.num_free -= self.groups[group][0]
        return True

    def actor(self, kind: type[Any], arguments: Sequence[Any], place: tuple[Any, int, str]) -> FakeActor:
        self.actors.append(FakeActor(kind, arguments, place))
        return self.actors[-1]

    def observer(self, kind: type[Any], arguments: Sequence[Any], node_id: str) -> FakeActor:
        self.observers.append(FakeActor(kind, arguments, node_id))
        return self.observers[-1]

    def call(self, actor: FakeActor, method: str, *arguments: Any) -> "Future[Any]":
        return actor.call(method, arguments)

    def first_done(self, references: Sequence["Future[Any]"], wait_seconds: float) -> list["Future[Any]"]:
        return list(wait(references, wait_seconds, FIRST_COMPLETED).done)

    def result(self, reference: "Future[Any]", wait_seconds: float) -> Any:
        return reference.result(wait_seconds)

    def remove(self, actors: Sequence[FakeActor], groups: Sequence[Any]) -> None:
        for actor in actors:
            actor.kill()
        self.removed += groups

    def disconnect(self) -> None:
        self.is_connected = False
