"""What an Observer keeps of a run grows until its histories are full, and no further."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fact_stream import FactStream

from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_views import ObserverViews
from vllm_obs.telemetry.view import Fact, Source

NUM_AT_ONCE = 4
PAUSE_NS = 90_000_000
ROUNDS_A_TICK = 10


class Run:
    """A run in its own time: rounds of requests that are served, drained by an Observer with all views."""

    def __init__(self, run_dir: Path) -> None:
        self._stream = FactStream(num_blocks=256)
        self._observer = Observer("run", clock=lambda: self._stream.now)
        self._observer.tail = self
        self._views = ObserverViews(self._observer, ObserverConfig(run_dir), 1, {})
        self._num_rounds = 0
        self._num_before = sys.getallocatedblocks()
        self._stream.describe()

    def drain(self, max_records: int) -> Iterator[tuple[Source, Fact]]:
        """Everything that was written, once."""
        yield from self._stream.facts
        self._stream.facts.clear()

    def close(self) -> None:
        """Nothing is open."""

    def serve(self, num_rounds: int) -> int:
        """Serve so many rounds; how many more pieces of memory Python has in use then than before the first."""
        for number in range(self._num_rounds, self._num_rounds + num_rounds):
            names = [f"r{number}-{place}" for place in range(NUM_AT_ONCE)]
            for name in names:
                self._stream.submit(name, num_prompt_tokens=20)
            self._stream.step(dict.fromkeys(names, 20))
            for _ in range(8):
                self._stream.step(dict.fromkeys(names, 1))
            for name in names:
                self._stream.finish(name)
                del self._stream.sequences[name]
            self._stream.pass_time(PAUSE_NS)
            self._observer.drain_slice()
            if number % ROUNDS_A_TICK == 0:
                self._views.tick(self._stream.now)
        self._num_rounds += num_rounds
        gc.collect()
        return sys.getallocatedblocks() - self._num_before


@pytest.mark.long
def test_it_levels_off_once_its_histories_are_full(tmp_path: Path) -> None:
    """After 24,000 requests and 600 s of the run's time; as many again add nothing."""
    run = Run(tmp_path)
    halfway, full = run.serve(1500), run.serve(4500)
    again = run.serve(6000)
    print(f"{halfway}, {full}, {again} pieces after 6,000, 24,000 and 48,000 requests")
    assert full > 1.2 * halfway, "there was something to fill"
    assert again < 1.001 * full
