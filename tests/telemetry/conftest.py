"""What tests of rings share: recorders and readers that are closed again, and a record of any size."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import FrameDropped
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader

MakeRecorder = Callable[..., FlightRecorder]
MakeReader = Callable[..., RingReader]


@pytest.fixture
def ring_path(tmp_path: Path) -> Path:
    return tmp_path / "EngineCore_DP0.ring"


@pytest.fixture
def make_recorder(ring_path: Path) -> Iterator[MakeRecorder]:
    with ExitStack() as stack:

        def make(capacity_bytes: int = 4096, path: Path = ring_path) -> FlightRecorder:
            recorder = FlightRecorder(path, "EngineCore_DP0", capacity_bytes)
            stack.callback(recorder.close)
            return recorder

        yield make


@pytest.fixture
def make_reader(ring_path: Path) -> Iterator[MakeReader]:
    with ExitStack() as stack:

        def make(path: Path = ring_path, cursor: RingCursor | None = None) -> RingReader:
            return stack.enter_context(RingReader(path, cursor))

        yield make


@pytest.fixture
def dropped() -> Callable[[int, int], FrameDropped]:
    """Makes a record that says its own number and is as long as asked for."""
    return lambda number, length=0: FrameDropped("w" * length, "decode", number)
