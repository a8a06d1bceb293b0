from fact_stream import FactStream

from vllm_obs.telemetry.ended_sequences import EndedSequences
from vllm_obs.telemetry.run_state import RunState


def test_ended_sequences_are_bounded_in_number_and_age() -> None:
    stream = FactStream()
    for index in range(5):
        stream.submit(f"r-{index}")
        stream.finish(f"r-{index}")
        stream.pass_time(10**9)
    state = RunState()
    for fact in stream.facts:
        state.apply(*fact)
    kept = EndedSequences(max_sequences=3)
    for ledger in state.ended:
        kept.add(ledger)
    assert [ledger.request_id for ledger in kept] == ["r-2", "r-3", "r-4"]
    assert [ledger.request_id for ledger in reversed(kept)] == ["r-4", "r-3", "r-2"]
    ledger = state.ended.get("r-3")
    assert ledger is not None
    kept.trim(ledger.ended_at + 600 * 10**9)
    assert ["r-2" in kept, "r-3" in kept, len(kept)] == [False, True, 2]
