"""What is sent to an engine's state is just what that takes in."""

from fact_stream import ENGINE

from vllm_obs.telemetry.core_kinds import CORE_KINDS
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.sequence_book import SequenceBook
from vllm_obs.telemetry.view_fan import ViewFan


def test_an_engine_takes_in_all_that_its_core_writes_and_nothing_else() -> None:
    views, laws = ViewFan(), Invariants()
    engine = EngineState(ENGINE, SequenceBook(views, laws), views, laws)
    assert set(engine._handlers) == set(CORE_KINDS)
