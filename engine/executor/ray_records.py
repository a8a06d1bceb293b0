"""RayRecords: the thread that asks the observer on each host of a Ray cluster for what is recorded there."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_obs.engine.executor.ray_news import RaySeat
from vllm_obs.engine.executor.ray_observer import RayObserver
from vllm_obs.engine.executor.ray_port import Actor, ActorCallError, ActorLostError, RayPort, Reference
from vllm_obs.engine.nodes.clock_offset import ClockOffset, Exchange
from vllm_obs.engine.nodes.node_mirrors import NodeMirrors

WAIT_SECONDS = 0.5
"""How long an observer waits for something new."""
TAKE_SECONDS = 5.0
RETRY_SECONDS = 1.0
MAX_FAILURES = 30
"""One after the other. Ray starts an observer again that has ended, but not where its host is gone."""
LAST_SECONDS = 2.0
"""How long is waited for what the ranks have recorded of their own end."""
_LOOK_SECONDS = 0.5

_logger = logging.getLogger(__name__)


@dataclass
class ObservedHost:
    """A host's observer, and what is known of it. `name` is what the host's records are filed under."""

    name: str
    actor: Actor
    clock: ClockOffset = field(default_factory=ClockOffset)
    asked_at: int = 0
    ask_at: float = 0.0
    num_failures: int = 0
    has_told_last: bool = False


class RayRecords:
    """Telemetry may fail: a host whose observer cannot be had is left out, with a warning, and nothing else."""

    def __init__(self, port: RayPort, mirrors: NodeMirrors) -> None:
        self._port = port
        self._mirrors = mirrors
        self._hosts: list[ObservedHost] = []
        self._asked: dict[Reference, ObservedHost] = {}
        self._stopped_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ray records", daemon=True)

    @property
    def actors(self) -> list[Actor]:
        """The observers, to be ended with the ranks."""
        return [host.actor for host in self._hosts]

    def start(self, seats: Sequence[RaySeat], run_dirs: Mapping[int, str]) -> None:
        """Start an observer on each host that has ranks, for their run directories by rank; begin to ask."""
        for name, ranks in hosts_of(seats).items():
            arguments = ([run_dirs[seat.rank] for seat in ranks], self._mirrors.positions(name))
            try:
                actor = self._port.observer(RayObserver, arguments, ranks[0].where.node_id)
            except Exception as error:
                _logger.warning("what is recorded on %s is left out: %s", name, type(error).__name__)
                continue
            self._hosts.append(ObservedHost(name, actor))
        self._thread.start()

    def stop(self) -> None:
        """Take what is there yet, and end the thread. Idempotent."""
        self._stopped_at = self._stopped_at or time.monotonic()
        if self._thread.ident is not None:
            self._thread.join(LAST_SECONDS + TAKE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._look()
        except Exception:
            if not self._stopped_at:
                _logger.exception("what the ranks record on their hosts is not taken any more")

    def _is_over(self) -> bool:
        if not self._stopped_at:
            return False
        is_late = time.monotonic() > self._stopped_at + LAST_SECONDS
        return is_late or all(host.has_told_last or host.num_failures for host in self._hosts)

    def _look(self) -> None:
        now, asked = time.monotonic(), {id(host) for host in self._asked.values()}
        for host in self._hosts:
            is_to_ask = now >= host.ask_at and host.num_failures < MAX_FAILURES and not host.has_told_last
            if is_to_ask and id(host) not in asked:
                self._ask(host)
        if not self._asked:
            time.sleep(_LOOK_SECONDS)
            return
        for reference in self._port.first_done(list(self._asked), _LOOK_SECONDS):
            self._take(self._asked.pop(reference), reference)

    def _ask(self, host: ObservedHost) -> None:
        host.asked_at = time.monotonic_ns()
        wait_seconds = 0.0 if self._stopped_at else WAIT_SECONDS
        self._asked[self._port.call(host.actor, "records", wait_seconds)] = host

    def _take(self, host: ObservedHost, reference: Reference) -> None:
        try:
            received_at, chunks, answered_at = self._port.result(reference, TAKE_SECONDS)
        except (ActorLostError, ActorCallError, TimeoutError) as error:
            self._failed(host, error)
            return
        host.num_failures = 0
        host.clock.add(Exchange(host.asked_at, received_at, answered_at, time.monotonic_ns()))
        for chunk in chunks:
            self._mirrors.write(host.name, chunk, -host.clock.offset_ns)
        was_asked_last = 0.0 < self._stopped_at * 1e9 < host.asked_at
        host.has_told_last = was_asked_last and not chunks

    def _failed(self, host: ObservedHost, error: Exception) -> None:
        host.num_failures += 1
        host.ask_at = time.monotonic() + RETRY_SECONDS
        if not self._stopped_at and host.num_failures in (1, MAX_FAILURES):
            then = "it is asked again" if host.num_failures == 1 else "its host is left out from now on"
            _logger.warning("the observer of the ranks on %s gives no records: %s; %s", host.name, error, then)


def hosts_of(seats: Sequence[RaySeat]) -> dict[str, list[RaySeat]]:
    """The ranks of each host by its address, behind which is a number where several hosts have the same."""
    by_node: dict[str, list[RaySeat]] = {}
    for seat in seats:
        by_node.setdefault(seat.where.node_id, []).append(seat)
    num_hosts = Counter(ranks[0].where.address for ranks in by_node.values())
    names: dict[str, list[RaySeat]] = {}
    for number, ranks in enumerate(by_node.values()):
        address = ranks[0].where.address
        names[address if num_hosts[address] == 1 else f"{address}.{number}"] = ranks
    return names
