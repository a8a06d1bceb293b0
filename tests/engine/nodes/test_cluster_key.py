"""The cluster's key: one must be there, it shows nowhere, and every host makes the same key pairs of it."""

from pathlib import Path

import pytest

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.nodes.cluster_key import KEY_VARIABLE, MAX_KEY_CHARS, key_pairs, read_cluster_key

SECRET = "0123456789abcdef"


def test_the_key_is_the_files_else_the_environments(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    assert read_cluster_key(str(file), {KEY_VARIABLE: "another secret that is not read"}) == SECRET
    assert read_cluster_key(None, {KEY_VARIABLE: f" {SECRET} "}) == SECRET


def test_without_a_key_nothing_starts() -> None:
    with pytest.raises(ConfigError, match=r"--cluster-key-file or VLLM_OBS_CLUSTER_KEY"):
        read_cluster_key(None, {})


@pytest.mark.parametrize("secret", ["", SECRET[1:], "x" * (MAX_KEY_CHARS + 1)])
def test_a_key_too_short_or_too_long_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigError, match=rf"{len(secret)} characters; between 16 and 4096") as caught:
        read_cluster_key(None, {KEY_VARIABLE: secret})
    assert not secret or secret not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cluster-key-file .*missing: No such file"):
        read_cluster_key(str(tmp_path / "missing"))
    (tmp_path / "bytes").write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_cluster_key(str(tmp_path / "bytes"))


def test_the_same_secret_makes_the_same_pairs_and_another_others() -> None:
    pairs, others = key_pairs(SECRET), key_pairs(SECRET + "!")
    assert pairs == key_pairs(SECRET)
    keys = [key for each in (pairs, others) for pair in each for key in pair]
    assert {len(key) for key in keys} == {40}
    assert len(set(keys)) == len(keys)


def test_keys_do_not_show_when_they_are_printed() -> None:
    pairs = key_pairs(SECRET)
    assert pairs.host.secret.decode() not in repr(pairs)
    assert pairs.nodes.public.decode() not in f"{pairs}"
