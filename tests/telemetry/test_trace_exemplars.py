import pytest
from metric_facts import TRACED

from vllm_obs.telemetry.metric_series import Exemplar
from vllm_obs.telemetry.trace_exemplars import ExemplarClock, is_sampled


def test_an_exemplar_has_the_trace_and_wall_time() -> None:
    clock = ExemplarClock(10**18)
    assert clock.exemplar(TRACED, 0.5, 10**9) == Exemplar(TRACED.split("-")[1], 0.5, 1e9 + 1)


@pytest.mark.parametrize("trace_parent", ["", "00", TRACED[:-2] + "00", TRACED[:-2] + "zz", TRACED[:-2]])
def test_what_is_not_sampled_has_no_exemplar(trace_parent: str) -> None:
    assert not is_sampled(trace_parent)
    assert ExemplarClock(0).exemplar(trace_parent, 1.0, 1) is None


def test_a_trace_without_a_parent_span_is_sampled_all_the_same() -> None:
    assert is_sampled(f"00-{'1' * 32}-{'0' * 16}-01")
