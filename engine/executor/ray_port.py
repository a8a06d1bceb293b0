"""RayPort: all that is used of Ray, loaded when it is asked for; and the errors that come of it."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Protocol, TypeVar

from vllm_obs.engine.errors import ConfigError, StartupError, VllmObsError

CONNECT_SECONDS = 60.0
REMOVE_SECONDS = 5.0
MAX_RESTARTS = 8
"""Of an observer, before its host's records are left out."""
INSTALL_HINT = "--distributed-executor-backend ray needs Ray: pip install 'vllm-obs[ray]', on every host"

Reference = Any
"""What a call to an actor will come to."""
Actor = Any
Group = Any
"""A placement group: places for ranks, one after the other."""

T = TypeVar("T")


class ActorLostError(VllmObsError):
    """An actor's process or host is gone; the words are Ray's, in one line."""


class ActorCallError(VllmObsError):
    """A call to an actor raised; the actor goes on."""


class RayPort(Protocol):
    """What the executor needs of a Ray cluster. Nothing waits for longer than it is given."""

    def connect(self) -> None:
        """ConfigError where Ray is not installed, StartupError where no cluster is reached."""

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        """What the cluster has in all, and what of it is free."""

    def largest_host(self, resource: str) -> float:
        """The most of a resource that one host has."""

    def group(self, resource: str, num_places: int, is_one_host: bool) -> Group:
        """Ask for so many places with one of the resource each, all on one host or on as few as there can be."""

    def has_places(self, group: Group, wait_seconds: float) -> bool:
        """Whether the places are there, within that time."""

    def actor(self, kind: type[Any], arguments: Sequence[Any], place: tuple[Group, int, str]) -> Actor:
        """Start an actor at a place: (group, index in it, the resource that it takes)."""

    def observer(self, kind: type[Any], arguments: Sequence[Any], node_id: str) -> Actor:
        """Start an actor on that host, which takes none of its places; Ray starts it again where it ends."""

    def call(self, actor: Actor, method: str, *arguments: Any) -> Reference:
        """Call a method, without waiting."""

    def first_done(self, references: Sequence[Reference], wait_seconds: float) -> list[Reference]:
        """Those that are done, as soon as one is; none when none is in that time."""

    def result(self, reference: Reference, wait_seconds: float) -> Any:
        """What the call came to. TimeoutError, ActorLostError or ActorCallError where it did not."""

    def remove(self, actors: Sequence[Actor], groups: Sequence[Group]) -> None:
        """End actors and give places back. Never raises."""

    def disconnect(self) -> None:
        """Let go of the cluster. Never raises."""


class RealRay:
    """Ray itself, with the cluster of RAY_ADDRESS, else one that was started on this host."""

    def __init__(self) -> None:
        self._has_joined = False

    def connect(self) -> None:
        """Load Ray and join the cluster as a driver, from another thread: else Ray takes SIGTERM for itself."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise ConfigError(INSTALL_HINT) from error
        self._ray: Any = ray
        if ray.is_initialized():
            return  # whoever embeds this engine has joined a cluster, and will leave it
        self._has_joined = True
        address = os.environ.get("RAY_ADDRESS") or "auto"
        try:
            within(CONNECT_SECONDS, lambda: ray.init(address=address, **_QUIETLY))
        except TimeoutError:
            raise StartupError(f"Ray at {address} did not answer within {CONNECT_SECONDS:g} s") from None
        except Exception as error:
            raise StartupError(f"no Ray cluster is reached at {address}: {_line(error)}; {_START_HINT}") from error

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        """What the cluster has in all, and what of it is free."""
        return self._ray.cluster_resources(), self._ray.available_resources()

    def largest_host(self, resource: str) -> float:
        """The most of a resource that one live host has."""
        hosts = [host["Resources"] for host in self._ray.nodes() if host["Alive"]]
        return max((float(host.get(resource, 0)) for host in hosts), default=0.0)

    def group(self, resource: str, num_places: int, is_one_host: bool) -> Group:
        """Ask for places."""
        strategy = "STRICT_PACK" if is_one_host else "PACK"
        return self._ray.util.placement_group([{resource: 1}] * num_places, strategy=strategy)

    def has_places(self, group: Group, wait_seconds: float) -> bool:
        """Whether the places are there."""
        return bool(group.wait(timeout_seconds=wait_seconds))

    def actor(self, kind: type[Any], arguments: Sequence[Any], place: tuple[Group, int, str]) -> Actor:
        """Start an actor. It is never started again by Ray: its rank's state would be lost."""
        strategies = import_module("ray.util.scheduling_strategies")
        group, index, resource = place
        options = {
            "num_cpus": 1 if resource == "CPU" else 0,
            "num_gpus": 1 if resource == "GPU" else 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {"commands": 1, "news": 1},
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(group, index),
        }
        return self._ray.remote(**options)(kind).remote(*arguments)

    def observer(self, kind: type[Any], arguments: Sequence[Any], node_id: str) -> Actor:
        """Start an actor on that host and on no other. It ends with this driver, as all that are not detached."""
        strategies = import_module("ray.util.scheduling_strategies")
        options = {
            "num_cpus": 0,
            "max_restarts": MAX_RESTARTS,
            "max_task_retries": 0,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node_id, soft=False),
        }
        return self._ray.remote(**options)(kind).remote(*arguments)

    def call(self, actor: Actor, method: str, *arguments: Any) -> Reference:
        """Call a method in the concurrency group of its name, if it has one."""
        found = getattr(actor, method)
        if method in ("command", "news"):
            found = found.options(concurrency_group="commands" if method == "command" else "news")
        return found.remote(*arguments)

    def first_done(self, references: Sequence[Reference], wait_seconds: float) -> list[Reference]:
        """Those that are done."""
        done, left = self._ray.wait(list(references), num_returns=1, timeout=wait_seconds)
        more, _ = self._ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
        return [*done, *more]

    def result(self, reference: Reference, wait_seconds: float) -> Any:
        """What the call came to."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=wait_seconds)
        except errors.GetTimeoutError:
            raise TimeoutError(f"no answer within {wait_seconds:g} s") from None
        except (errors.RayActorError, errors.NodeDiedError, errors.ObjectLostError) as error:
            raise ActorLostError(_line(error)) from None
        except errors.RayError as error:
            raise ActorCallError(_line(error)) from None

    def remove(self, actors: Sequence[Actor], groups: Sequence[Group]) -> None:
        """End actors and give places back."""

        def act() -> None:
            for actor in actors:
                self._ray.kill(actor)
            for group in groups:
                self._ray.util.remove_placement_group(group)

        _try(act)

    def disconnect(self) -> None:
        """Let go of the cluster, which then ends whatever of this driver is left there."""
        if self._has_joined:
            _try(lambda: self._ray.shutdown())


_QUIETLY: dict[str, Any] = {
    "configure_logging": False,
    "log_to_driver": False,
}
_START_HINT = "start one with `ray start --head`, or set RAY_ADDRESS"


def within(seconds: float, act: Callable[[], T]) -> T:
    """What `act` returns or raises, in another thread; TimeoutError when that takes longer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="ray", daemon=True).start()
    return future.result(seconds)


def _try(act: Callable[[], object]) -> None:
    """At the end: what cannot be done in time is left to Ray, which sees the driver go."""
    try:
        within(REMOVE_SECONDS, act)
    except Exception:
        return


def _line(error: BaseException) -> str:
    """The first line of an error's words that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300].removesuffix(": ")
