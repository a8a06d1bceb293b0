"""The number that names a kernel call in a profile."""

from vllm_obs.engine.model.operator_label import Operator, OperatorCall, label, read_label


def test_every_label_is_read_back() -> None:
    for layer in (-1, 0, 1, 127):
        for operator in Operator:
            assert read_label(label(operator, layer)) == OperatorCall(operator.title, layer)


def test_titles_name_a_family_and_a_part() -> None:
    assert Operator.LINEAR_GATE_UP.title == "linear.gate_up"
    assert Operator.NORM_POST_ATTENTION.title == "norm.post_attention"
    assert Operator.ATTENTION.title == "attention"


def test_a_call_without_a_label_is_some_kernel() -> None:
    assert read_label(0) == OperatorCall("kernel", -1)
