"""The labels that keys are charged under: numbered or named, capped, and nothing of the key in them."""

import pytest

from vllm_obs.server.accounts import MAX_ACCOUNTS, account_labels, split_named


def test_keys_are_numbered_in_order_unless_they_have_names() -> None:
    assert account_labels(["", "batch", "", "batch"]) == ("key-1", "batch", "key-3", "batch")
    assert account_labels([]) == ()


def test_labels_are_capped() -> None:
    labels = account_labels([""] * (MAX_ACCOUNTS + 3))
    assert labels[-4:] == (f"key-{MAX_ACCOUNTS}", "other", "other", "other")
    names = account_labels([f"n{number}" for number in range(MAX_ACCOUNTS)] + ["late", "n0"])
    assert names[-2:] == ("other", "n0")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("secret", ("", "secret")),
        ("team secret", ("", "team secret")),
        ("team:secret", ("", "team:secret")),
        ("team\tsecret", ("team", "secret")),
        ("team.a-1_b\t\tsecret with spaces", ("team.a-1_b", "secret with spaces")),
    ],
)
def test_only_a_tab_parts_a_name_from_its_key(line: str, named: tuple[str, str]) -> None:
    assert split_named(line) == named


@pytest.mark.parametrize("name", ["none", "other", "unknown", "key-1", "a b", "x" * 65, "-a", "é", "a\tb"])
def test_a_name_that_cannot_be_one_is_refused_without_being_shown(name: str) -> None:
    with pytest.raises(ValueError, match="the name before the tab is") as refused:
        split_named(f"{name}\tsecret")
    assert "secret" not in str(refused.value)
    assert f"{name}\t" not in str(refused.value)
