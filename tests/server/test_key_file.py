"""A key file is read again once it has changed, and what is wrong with it is said once."""

import os
import time
from pathlib import Path

import pytest

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server import key_file
from vllm_obs.server.key_file import MAX_FILE_CHARS, KeyFile, check_keys, read_keys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def write(path: Path, text: str, seconds_ago: float = 10.0) -> None:
    """Replace the file as one does who does it right; its time is `seconds_ago`."""
    new = path.with_suffix(".new")
    new.write_text(text)
    then = time.time_ns() - int(seconds_ago * 1e9)
    os.utime(new, ns=(then, then))
    new.replace(path)


def test_only_a_change_is_read(path: Path) -> None:
    write(path, "one\n")
    file = KeyFile(str(path))
    assert [file.changed_keys() for _ in range(2)] == [{"one": ""}, None]
    write(path, "two\n")
    assert [file.changed_keys() for _ in range(2)] == [{"two": ""}, None]
    assert file.changed_keys(is_asked=True) == {"two": ""}


def test_a_link_that_points_elsewhere_is_a_change(path: Path, tmp_path: Path) -> None:
    """As Kubernetes replaces a secret."""
    for name in ("one", "two"):
        write(tmp_path / f"{name}.txt", name)
    path.symlink_to(tmp_path / "one.txt")
    file = KeyFile(str(path))
    assert file.changed_keys() == {"one": ""}
    path.unlink()
    path.symlink_to(tmp_path / "two.txt")
    assert file.changed_keys() == {"two": ""}


def test_what_is_being_written_is_left_for_the_next_look(path: Path) -> None:
    write(path, "one\n")
    file = KeyFile(str(path))
    file.changed_keys()
    write(path, "ha", seconds_ago=0)
    assert file.changed_keys() is None
    write(path, "half\n")
    assert file.changed_keys() == {"half": ""}


def test_one_from_the_future_is_read_all_the_same(path: Path) -> None:
    write(path, "one\n", seconds_ago=-3600)
    assert KeyFile(str(path)).changed_keys() == {"one": ""}


@pytest.mark.parametrize("broken", ["", " \n", "bad name\tkey\n", "a\x00b\n", "k\n" * 1 + "x" * 5000])
def test_a_broken_file_is_one_error_and_then_nothing(path: Path, broken: str) -> None:
    write(path, "one\n")
    file = KeyFile(str(path))
    file.changed_keys()
    write(path, broken)
    with pytest.raises(ConfigError):
        file.changed_keys()
    assert file.changed_keys() is None
    write(path, "two\n")
    assert file.changed_keys() == {"two": ""}


def test_a_file_that_is_gone_is_one_error_until_it_is_back(path: Path) -> None:
    write(path, "one\n")
    file = KeyFile(str(path))
    file.changed_keys()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        file.changed_keys()
    assert file.changed_keys() is None
    with pytest.raises(ConfigError, match="No such file"):
        file.changed_keys(is_asked=True)
    write(path, "one\n")
    assert file.changed_keys() == {"one": ""}


def test_the_same_key_twice_keeps_its_first_name(path: Path) -> None:
    write(path, "team\tk\nk\n")
    assert read_keys(str(path)) == {"k": "team"}


def test_sizes_have_limits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILE_CHARS == 4 << 20
    monkeypatch.setattr(key_file, "MAX_FILE_CHARS", 10)
    write(path, "k" * 11)
    with pytest.raises(ConfigError, match="over 10 characters long"):
        read_keys(str(path))
    with pytest.raises(ConfigError, match="1025 API keys are given; at most 1024"):
        check_keys(map(str, range(1025)))
    with pytest.raises(ConfigError, match="unprintable or over 4096") as refused:
        check_keys(["s3cret\x00"])
    assert "s3cret" not in str(refused.value)
