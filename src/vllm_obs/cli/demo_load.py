"""The main of the demo's load process: sends each regime's requests over HTTP, one regime after the other."""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

from vllm_obs.cli.bench.client import BenchClient, describe_failure
from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.cli.demo_options import DemoOptions
from vllm_obs.cli.demo_ranks import rank_processes, rank_title, stopped
from vllm_obs.cli.live_run import find_inspector
from vllm_obs.cli.printing import say
from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.model.source import SYNTHETIC_MODEL
from vllm_obs.engine.synthetic.prompts import prompt_of
from vllm_obs.engine.synthetic.regimes import REGIMES, Arrival, Regime, Stall, rng_of
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

READY_SECONDS = 60.0
GRACE_SECONDS = 3.0
"""How long the last requests of a regime may go on before they are cut off."""
MAX_OPEN_REQUESTS = 512
"""Requests that would come on top of these are left out."""
WATCH_SECONDS = 0.5
INSPECTOR_ATTEMPTS = 20
MAX_ARRIVALS = 1 << 20
"""Of one regime in one round: the prompts of no two have the same number, or the prefix cache would know them."""
STREAMED_EACH = 3
"""One of so many requests is streamed."""

Complete = Callable[[dict[str, Any]], Awaitable[str]]
"""Posts a completion; what went wrong, in words, or nothing."""


class RegimeLoad:
    """One regime for one period: its requests at their moments, and its stalls. `complete` posts a body."""

    def __init__(self, regime: Regime, complete: Complete, root_pid: int) -> None:
        self._regime = regime
        self._complete = complete
        self._root_pid = root_pid
        self._open: set[asyncio.Task[None]] = set()
        self._first_number = 0
        self.num_answered = self.num_failed = self.num_cut_off = self.num_left_out = 0

    async def run(self, seed: int, round_number: int, seconds: float) -> None:
        """Send for so many seconds, then cut off what does not end within the grace; also when cancelled."""
        arrivals = self._regime.arrivals(rng_of(self._regime.name, seed, round_number), seconds)
        self._first_number = crc32(f"{self._regime.name}/{seed}/{round_number}".encode()) * MAX_ARRIVALS
        stalls = [asyncio.create_task(self._stall(stall)) for stall in self._regime.stalls(seconds)]
        try:
            await self._send_all(arrivals, seconds)
            if self._open:
                await asyncio.wait(self._open, timeout=GRACE_SECONDS)
        finally:
            await self._end([*stalls, *self._open])

    async def _send_all(self, arrivals: list[Arrival], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        for number, arrival in enumerate(arrivals, self._first_number):
            await asyncio.sleep(begun_at + arrival.at_seconds - loop.time())
            if len(self._open) >= MAX_OPEN_REQUESTS:
                self.num_left_out += 1
                continue
            task = asyncio.create_task(self._send(body_of(arrival, number)))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await asyncio.sleep(begun_at + seconds - loop.time())

    async def _send(self, body: dict[str, Any]) -> None:
        try:
            failure = await self._complete(body)
        except (OSError, TimeoutError):
            failure = "the connection broke"
        except asyncio.CancelledError:
            self.num_cut_off += 1
            raise
        self.num_failed += bool(failure)
        self.num_answered += not failure

    async def _stall(self, stall: Stall) -> None:
        """Stop the last rank's process for real, and let it go on, also when this is cancelled."""
        await asyncio.sleep(stall.at_seconds)
        ranks = await asyncio.to_thread(rank_processes, self._root_pid)
        if not ranks:
            say("  there is no rank to stop")
            return
        who = f"{rank_title(ranks[-1])} (pid {ranks[-1].pid})"
        with stopped(ranks[-1]):
            say(f"  {who} is stopped now, for {stall.seconds:g} s (SIGSTOP)")
            await asyncio.sleep(stall.seconds)
        say(f"  {who} goes on (SIGCONT)")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class DemoDriver:
    """Shows one regime after the other, round after round, and says in words what it does."""

    def __init__(self, options: DemoOptions, client: BenchClient, root_pid: int) -> None:
        self._options = options
        self._client = client
        self._root_pid = root_pid

    async def run(self) -> None:
        """Until cancelled. ServerUnreachableError where the server does not become ready."""
        await self._client.wait_until_ready(READY_SECONDS)
        say(await asyncio.to_thread(where_to_look, api_url(self._options)))
        for round_number in itertools.count():
            for name in self._options.regimes:
                await self._show(REGIMES[name], round_number)

    async def _show(self, regime: Regime, round_number: int) -> None:
        options = self._options
        say(f"Regime {regime.name}, for {options.period:g} s: {regime.says}")
        # Each engine's worth of load has a seed of its own; one rank of one engine is stopped.
        regimes = [regime, *[replace(regime, stall_every_seconds=0.0)] * (options.engines - 1)]
        loads = [RegimeLoad(each, self._post, self._root_pid) for each in regimes]
        seeds = range(options.seed, options.seed + options.engines)
        runs = (load.run(seed, round_number, options.period) for load, seed in zip(loads, seeds, strict=True))
        await asyncio.gather(*runs)
        counts = {
            "answered": sum(load.num_answered for load in loads),
            "failed": sum(load.num_failed for load in loads),
            "cut off": sum(load.num_cut_off for load in loads),
            "left out": sum(load.num_left_out for load in loads),
        }
        say("  requests: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count))

    async def _post(self, body: dict[str, Any]) -> str:
        reply = await self._client.complete(body)
        return describe_failure(reply) if body["stream"] or reply.status != 200 else ""


def body_of(arrival: Arrival, number: int) -> dict[str, Any]:
    """The completion that the arrival with this number asks for."""
    return {
        "model": SYNTHETIC_MODEL,
        "prompt": prompt_of(arrival, number).tolist(),
        "max_tokens": arrival.max_tokens,
        "seed": number,
        "stream": number % STREAMED_EACH == 0,
    }


def api_url(options: DemoOptions) -> str:
    """Where the demo's server listens."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{options.port}"


def where_to_look(url: str) -> str:
    """The addresses of a running server, in words. The inspector may come up a moment after it."""
    for _ in range(INSPECTOR_ATTEMPTS):
        try:
            inspector = find_inspector(url).url
            return f"Look: API {url}, metrics {url}/metrics, inspector {inspector}/inspect/state, vllm-obs top"
        except (InspectorError, ConfigError):
            time.sleep(WATCH_SECONDS)
    return f"Look: API {url}, metrics {url}/metrics (the inspector does not answer yet)"


async def drained(url: str) -> None:
    """Return once the server at `url` says that it drains or has lost its engine."""
    server = Inspector(url, timeout_seconds=2 * WATCH_SECONDS)
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            status = (await asyncio.to_thread(server.get, "/livez")).get("status")
        except InspectorError as error:
            status = "dead" if error.status else ""
        if status in ("draining", "dead"):
            return


def owned_by(root_pid: int) -> int:
    """The demo's process, whose ranks may be stopped. StartupError where it is not this one's parent any more."""
    if os.getppid() != root_pid:
        raise StartupError(f"process {root_pid}, which started this load, is gone")
    return root_pid


async def serve(owner: Owner) -> None:
    """Send until the owner orders the end; no longer than its server lets requests in."""
    options = DemoOptions(**owner.configuration["options"])
    root_pid = owned_by(owner.configuration["root_pid"])
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(stop.set)

    owner.on_stop(end)
    client = BenchClient(BenchOptions(base_url=api_url(options)))
    driving = asyncio.create_task(DemoDriver(options, client, root_pid).run())
    watching = asyncio.create_task(drained(api_url(options)))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({driving, watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (driving, watching):
        task.cancel()
    ended = await asyncio.gather(driving, watching, return_exceptions=True)
    client.close()
    if isinstance(ended[0], Exception):
        raise ended[0]
    await stopping


def run_load(owner: Owner) -> None:
    """The body of the process."""
    asyncio.run(serve(owner))


if __name__ == "__main__":
    run_child(run_load)
