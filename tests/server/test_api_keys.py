"""Keys are replaced all at once; labels and owners stay with their key, wherever it stands."""

from vllm_obs.server.accounts import MAX_ACCOUNTS
from vllm_obs.server.api_keys import ApiKeys, Holder


def holders(keys: ApiKeys, *presented: str) -> list[Holder | None]:
    return [keys.holder(key.encode()) for key in presented]


def test_an_old_key_is_no_key_at_once() -> None:
    keys = ApiKeys({"old": "", "stays": ""})
    stays = keys.holder(b"stays")
    assert keys.replace({"new": "", "stays": ""}) == (1, 1)
    assert holders(keys, "old", "stays") == [None, stays]
    assert keys.holder(b"new") is not None


def test_no_label_goes_over_to_another_key() -> None:
    keys = ApiKeys({"a": "", "b": ""})
    assert [holder.account for holder in holders(keys, "a", "b") if holder] == ["key-1", "key-2"]
    keys.replace({"b": "", "c": ""})
    assert [holder.account for holder in holders(keys, "b", "c") if holder] == ["key-2", "key-3"]
    keys.replace({"a": ""})
    assert [holder.account for holder in holders(keys, "a") if holder] == ["key-4"]


def test_a_key_that_takes_the_place_of_another_owns_nothing_of_it() -> None:
    keys = ApiKeys({"first": ""})
    first = keys.holder(b"first")
    keys.replace({"second": ""})
    second = keys.holder(b"second")
    assert first is not None
    assert second is not None
    assert first.owner != second.owner


def test_keys_with_one_name_have_one_owner_over_a_rotation() -> None:
    keys = ApiKeys({"old": "team"})
    team = keys.holder(b"old")
    keys.replace({"old": "team", "new": "team"})
    assert holders(keys, "old", "new") == [team, team] == [Holder("team", "name:team")] * 2
    keys.replace({"new": "team"})
    assert (keys.holder(b"new"), keys.are_several) == (team, False)


def test_a_name_cannot_be_mistaken_for_a_key() -> None:
    keys = ApiKeys({"k": ""})
    (owner,) = [holder.owner for holder in holders(keys, "k") if holder]
    keys.replace({"other": owner.removeprefix("key:")})
    assert [holder.owner for holder in holders(keys, "other") if holder] != [owner]


def test_that_there_were_several_owners_is_never_forgotten() -> None:
    keys = ApiKeys({"a": ""})
    assert not keys.are_several
    keys.replace({"a": "", "b": ""})
    keys.replace({"b": ""})
    assert keys.are_several
    taken_over = ApiKeys({"a": ""})
    taken_over.replace({"b": ""})
    assert taken_over.are_several
    assert ApiKeys({"a": "", "b": "team"}).are_several
    assert not ApiKeys({"b": "team", "c": "team"}).are_several


def test_however_often_keys_change_labels_are_few() -> None:
    keys = ApiKeys({})
    seen = set()
    for number in range(3 * MAX_ACCOUNTS):
        keys.replace({f"key number {number}": ""})
        seen |= {holder.account for holder in holders(keys, f"key number {number}") if holder}
    assert len(seen) == MAX_ACCOUNTS + 1
    assert "other" in seen


def test_without_keys_there_is_nothing() -> None:
    keys = ApiKeys({})
    assert (bool(keys), keys.holder(b""), keys.are_several) == (False, None, False)
