"""The client of several engines for the API server's event loop: a sequence goes to one, outputs come from all."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_obs.engine.absent_engine import AbsentEngine
from vllm_obs.engine.balancer import MAX_PREFIX_TOKENS, EngineLoad, LoadBalancer, make_balancer, prefix_key
from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.client_async import AsyncMPClient, Said
from vllm_obs.engine.config import ParallelConfig, VllmConfig
from vllm_obs.engine.engine_place import EnginePlace
from vllm_obs.engine.engine_process import READY_TIMEOUT_SECONDS
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.errors import EngineDeadError, EngineLostError, StartupError, VllmObsError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishReason
from vllm_obs.engine.utility_answers import joined_answers
from vllm_obs.telemetry.recorder import NullRecorder, Recorder

GOES_ON = -1
"""The finish reason of a sequence that has not ended."""


class DPLBAsyncMPClient:
    """Data-parallel engines behind a balancer, one engine being the simplest case.

    An engine's end comes out of `get_output`, in its turn, as an EngineLostError with the sequences that it had;
    the others go on, and `let_in` puts another in its place. While none is there `dead_cause` says why.
    """

    def __init__(
        self,
        engines: Sequence[AsyncMPClient],
        balancer: LoadBalancer,
        num_together: int = 1,
        has_keys: bool = False,
    ) -> None:
        """`num_together` sequences of a request go to the same engine, whose prefix cache has their prompt then.

        `has_keys` says whether the balancer looks at the keys of requests. AbsentEngines are let in later.
        """
        self._places = {
            engine.engine_index: EnginePlace(engine, was_there=not isinstance(engine, AbsentEngine))
            for engine in engines
        }
        self._is_one_in = asyncio.Event()
        self._balancer = balancer
        self._num_together = num_together
        self._has_keys = has_keys
        self._owners: dict[str, EnginePlace] = {}
        self._said: asyncio.Queue[Said] = asyncio.Queue()
        self._is_shut_down = False
        self._last_cause: str | None = None
        for engine in engines:
            engine.say_into(self._said)

    @classmethod
    def launch(
        cls, config: VllmConfig, recorder: Recorder | None = None, module: str = ENGINE_MODULE
    ) -> "DPLBAsyncMPClient":
        """Start this server's engines at once; needs no running loop. Call it from the main thread."""
        engines: list[AsyncMPClient] = []
        try:
            for index in engine_indices(config.parallel):
                own = replace(config, engine_index=index)
                engines.append(AsyncMPClient.launch(own, recorder or NullRecorder(), module))
        except BaseException:
            for engine in engines:
                engine.shutdown(timeout_seconds=0)
            raise
        return cls.balanced(config, engines)

    @classmethod
    def balanced(cls, config: VllmConfig, engines: Sequence[AsyncMPClient]) -> "DPLBAsyncMPClient":
        """The client of these engines, with the balancer that is configured."""
        name = config.parallel.data_parallel_balancer or fitting_balancer(config.scheduler.num_clients)
        balancer = make_balancer(name, secrets.randbits(32))
        num_together = config.scheduler.max_num_seqs if config.cache.enable_prefix_caching else 1
        return cls(engines, balancer, num_together, has_keys=name == "prefix_affine")

    async def ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> list[EngineFacts]:
        """The facts of all engines, once all of them serve; ConfigError or StartupError of one that cannot.

        Absent ones are not waited for, but where all are, the first that is let in is enough.
        """
        there = [place.client for place in self._places.values() if place.was_there]
        if not there:
            return await self._first_in(timeout_seconds)
        starting = [asyncio.ensure_future(client.ready(timeout_seconds)) for client in there]
        try:
            return list(await asyncio.gather(*starting))
        finally:
            for start in starting:
                start.cancel()

    async def _first_in(self, timeout_seconds: float) -> list[EngineFacts]:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._is_one_in.wait()
        except TimeoutError:
            raise StartupError(f"no engine was there within {timeout_seconds:g} s") from None
        return self.engines

    @property
    def clients(self) -> list[AsyncMPClient]:
        """The clients of the engines that are there, or were last."""
        return [place.client for place in self._places.values()]

    @property
    def engines(self) -> list[EngineFacts]:
        """The facts of the engines that are there; where none is, of those that were last."""
        up = [place.facts for place in self._places.values() if place.is_up]
        return up or [place.facts for place in self._places.values() if place.was_there]

    @property
    def dead_cause(self) -> str | None:
        """Why there is no engine; None while there is one, and when all were stopped on purpose."""
        causes = [place.dead_cause for place in self._places.values()]
        return None if None in causes else self._last_cause or causes[0]

    @property
    def num_dropped(self) -> dict[str, int]:
        """Messages from the engines there are that were not taken, by reason."""
        dropped: Counter[str] = Counter()
        for client in self.clients:
            dropped.update(client.num_dropped)
        return dict(dropped)

    @property
    def places(self) -> list[EnginePlace]:
        """What is known of each engine."""
        return list(self._places.values())

    def place(self, engine_index: int) -> EnginePlace:
        """What is known of one of the engines."""
        return self._places[engine_index]

    def let_in(self, client: AsyncMPClient) -> None:
        """An engine that is ready takes the place of the one before it; `client` has said nothing yet."""
        self._places[client.engine_index].let_in(client)
        self._last_cause = None
        self._is_one_in.set()

    def adopt(self, client: AsyncMPClient) -> None:
        """What it says is to come out here; call this before it is ready."""
        client.say_into(self._said)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence with an engine that is there; EngineDeadError when there is none."""
        while True:
            place = self._choose(request)
            place.sending(request)
            self._owners[request.request_id] = place
            try:
                await place.client.add_request(request)
                if self._owners.get(request.request_id) is not place and place.is_up:  # its abort overtook it
                    await place.client.abort_requests([request.request_id], FinishReason.ABORT)
                return
            except EngineDeadError:  # it ended a moment ago, and never had the sequence
                is_ours = self._forget(request.request_id) is not None
                if place.is_up or not is_ours:  # one that has been told lost is not sent again
                    raise
            except BaseException:
                self._forget(request.request_id)
                raise

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason = FinishReason.ABORT) -> None:
        """End sequences, each where it runs, for the reason the OutputProcessor recorded.

        Those of an engine that is gone are over. Without any ids each engine gets a message that asks for nothing.
        """
        ids_by_place: dict[EnginePlace, list[str]] = {}
        for request_id in request_ids:
            if (place := self._forget(request_id)) is not None:
                ids_by_place.setdefault(place, []).append(request_id)
        if not request_ids:
            ids_by_place = {place: [] for place in self._places.values() if place.is_up}
        failure: VllmObsError | None = None
        for place, ids in ids_by_place.items():
            try:
                await place.client.abort_requests(ids, reason)
            except EngineDeadError:
                continue
            except VllmObsError as error:  # its queue is full; the others are to hear of theirs
                failure = error
        if failure is not None:
            raise failure

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of every EngineCore that is there; see `joined_answers` for what is answered."""
        up = [place.client for place in self._places.values() if place.is_up]
        if not up:
            raise EngineDeadError(self.dead_cause or "the engine was shut down")
        calls = [client.call_utility(method, *args) for client in up]
        return joined_answers(method, await asyncio.gather(*calls, return_exceptions=True))

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs of any engine. What arrived before one died is still handed out first.

        EngineLostError when one has died, EngineDeadError after `shutdown`.
        """
        while True:
            client, outputs = await self._said.get()
            if outputs is None and self._is_shut_down:
                self._said.put_nowait((client, None))
                raise EngineDeadError(self._last_cause or "the engine was shut down")
            place = self._places[client.engine_index]
            if outputs is not None:
                client.taken()
            if place.client is not client or place.cause is not None:
                continue  # of a life that is over
            if outputs is None:
                raise self._lose(place)
            self._saw(place, outputs)
            return outputs

    def give_up(self, cause: str) -> None:
        """Take no more outputs of the engines there are: whoever reads them has failed at it."""
        for place in self._places.values():
            if place.is_up:
                place.give_up(cause)
                self._said.put_nowait((place.client, None))

    def ask_to_stop(self) -> None:
        """Order the engines to end, without waiting; `shutdown` is still due."""
        for client in self.clients:
            client.ask_to_stop()

    @property
    def has_stopped(self) -> bool:
        """Whether all engines' processes have ended, for whatever reason."""
        return all(client.has_stopped for client in self.clients)

    def shutdown(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the engines within that time, then SIGKILL; blocks as long. Idempotent."""
        self.ask_to_stop()
        deadline = time.monotonic() + timeout_seconds
        self._is_shut_down = True
        for client in self.clients:
            client.shutdown(max(0.0, deadline - time.monotonic()))
            self._said.put_nowait((client, None))

    def _choose(self, request: EngineCoreRequest) -> EnginePlace:
        index = request.sampling.sequence_index
        if index % self._num_together:
            before = self._owners.get(f"{request.request_id.rpartition('-')[0]}-{index - 1}")
            if before is not None and before.is_up:
                return before
        places = list(self._places.values())
        if not any(place.is_up for place in places):
            raise EngineDeadError(self.dead_cause or "the engine was shut down")
        if len(places) == 1:
            return places[0]
        key = b""
        if self._has_keys:
            key = prefix_key(request.prompt_token_ids[:MAX_PREFIX_TOKENS].tolist(), request.cache_salt)
        return places[self._balancer.choose(self._loads(places), key)]

    def _loads(self, places: list[EnginePlace]) -> list[EngineLoad]:
        """One that ails counts as up only where no other is."""
        loads = [place.load for place in places]
        if any(load.is_up for load in loads):
            return loads
        return [load._replace(is_up=place.is_up) for load, place in zip(loads, places, strict=True)]

    def _forget(self, request_id: str) -> EnginePlace | None:
        place = self._owners.pop(request_id, None)
        if place is not None:
            place.ended(request_id)
        return place

    def _saw(self, place: EnginePlace, outputs: EngineCoreOutputs) -> None:
        place.saw(outputs)
        if outputs.finish_reasons.count(GOES_ON) < len(outputs.finish_reasons):
            for request_id, reason in zip(outputs.request_ids, outputs.finish_reasons, strict=True):
                if reason != GOES_ON:
                    self._forget(request_id)

    def _lose(self, place: EnginePlace) -> EngineLostError:
        request_ids = place.lose()
        for request_id in request_ids:
            self._owners.pop(request_id, None)
        cause = self._last_cause = place.cause or ""
        return EngineLostError(cause, place.client.engine_index, request_ids)


def fitting_balancer(num_clients: int) -> str:
    """The policy for so many API servers: several do not know what the others have sent, and would herd."""
    return "least_loaded" if num_clients == 1 else "power_of_two"


def engine_indices(parallel: ParallelConfig) -> list[int]:
    """The engines that this server runs: all of them, or the one that it was told to."""
    if parallel.data_parallel_rank is not None:
        return [parallel.data_parallel_rank]
    return list(range(parallel.data_parallel_size))
