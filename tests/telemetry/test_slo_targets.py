"""What --slo takes, in seconds, milliseconds and a benchmark's words."""

import pytest

from vllm_obs.telemetry.slo_targets import SloTargets, slo_doubt, slo_targets, slo_text


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("ttft=0.5,tpot=0.05,e2e=10", SloTargets(0.5, 0.05, 10.0)),
        ("ttft=500ms,tpot=50ms", SloTargets(0.5, 0.05)),
        ("ttft:500,tpot:50,e2el:10000", SloTargets(0.5, 0.05, 10.0)),
        (" ttft = 2s , e2e:3s ", SloTargets(ttft=2.0, e2e=3.0)),
        ("tpot=0.000000001", SloTargets(tpot=1e-9)),
        ("tpot:0.001", SloTargets(tpot=1e-6)),
        ("e2e=86400", SloTargets(e2e=86400.0)),
    ],
)
def test_targets_are_read(text: str, targets: SloTargets) -> None:
    assert slo_targets(text) == targets
    assert slo_targets(slo_text(targets)) == targets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not like ttft=0.5, tpot=50ms or ttft:500"),
        ("ttft", "'ttft' is not like"),
        ("ttft=-1", "'ttft=-1' is not like"),
        ("ttft=nan", "'ttft=nan' is not like"),
        ("ttft=1,", "'' is not like"),
        ("itl=1", "'itl' is not one of ttft, tpot, e2e"),
        ("ttft=1,ttft=2", "ttft is given twice"),
        ("e2e=1,e2el=2", "e2e is given twice"),
        ("ttft=0", "ttft is 0 s; it must be above 0 and at most 86400"),
        ("tpot=86401", "tpot is 86401 s; it must be above 0 and at most 86400"),
    ],
)
def test_what_is_no_target_is_refused_plainly(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        slo_targets(text)


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("", ""),
        ("ttft=60,tpot=50ms,e2e=600", ""),
        ("ttft=500,e2e=600", "--slo ttft=500 is 500 seconds: did you mean ttft=500ms?"),
        (
            "ttft=500,tpot=61",
            "--slo ttft=500 is 500 seconds: did you mean ttft=500ms?; "
            "tpot=61 is 61 seconds: did you mean tpot=61ms?",
        ),
    ],
)
def test_seconds_that_look_like_milliseconds_are_asked_about(text: str, doubt: str) -> None:
    assert slo_doubt(text) == doubt
