"""What is kept comes back whole or not at all, is nobody else's, and does not grow without end."""

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vllm_obs.engine.kept_files import KeptFiles, cache_directory


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "cache"


def only_file(base: Path) -> Path:
    (path,) = (base / "kernels").iterdir()
    return path


def test_what_was_kept_is_found_under_its_key_alone(base: Path) -> None:
    KeptFiles("kernels", base).keep(b"one", b"code")
    assert KeptFiles("kernels", base).find(b"one") == b"code"
    assert KeptFiles("kernels", base).find(b"two") is None
    assert KeptFiles("weights", base).find(b"one") is None


def test_what_is_kept_again_takes_the_place_of_what_was(base: Path) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")
    kept.keep(b"one", b"")
    assert kept.find(b"one") == b""
    assert only_file(base).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["cut short", "a bit", "emptied", "another format"])
def test_a_damaged_file_is_said_and_removed(base: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"a long piece of code")
    path = only_file(base)
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut short": content[:-1],
            "a bit": content[:-1] + bytes([content[-1] ^ 1]),
            "emptied": b"",
            "another format": b"x" + content[1:],
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        assert kept.find(b"one") is None
    assert "it is damaged" in caplog.text
    assert not path.exists()


def test_what_others_could_have_written_is_not_read(base: Path) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")
    only_file(base).chmod(0o622)
    assert kept.find(b"one") is None
    kept.keep(b"one", b"code")
    (base / "kernels").chmod(0o777)
    assert kept.find(b"one") is None
    kept.keep(b"two", b"code")
    assert len(list((base / "kernels").iterdir())) == 1, "nothing in it is touched either"


def test_what_lies_under_anothers_name_is_damaged(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code of one")
    path = only_file(base)
    kept.keep(b"two", b"code of two")
    (other,) = set(path.parent.iterdir()) - {path}
    other.write_bytes(path.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert kept.find(b"two") is None
    assert "it is damaged" in caplog.text
    assert kept.find(b"one") == b"code of one"


def test_a_folder_that_cannot_be_used_is_said_once(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")
    (base / "kernels").chmod(0o777)
    with caplog.at_level(logging.INFO):
        assert [kept.find(key) for key in (b"one", b"two")] == [None, None]
        kept.keep(b"three", b"code")
    (said,) = caplog.messages
    assert str(base / "kernels") in said
    assert "chmod 700" in said


def test_a_link_is_not_followed(base: Path) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")
    path = only_file(base)
    elsewhere = path.rename(base / "elsewhere")
    path.symlink_to(elsewhere)
    assert kept.find(b"one") is None
    assert elsewhere.exists()


def test_a_pipe_is_not_waited_for(base: Path) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")
    path = only_file(base)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert kept.find(b"one") is None
    assert not path.exists()


def test_what_can_only_be_read_is_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptFiles("kernels", base)
    kept.keep(b"one", b"code")

    def refuse(*args: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert kept.find(b"one") == b"code"
    assert only_file(base).exists()


def test_processes_that_keep_and_make_room_at_once_hurt_nobody(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = [KeptFiles("kernels", base, max_files=2) for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(50):
            key = bytes([turn % 5])
            kept[number].keep(key, key * 1000)
            assert kept[number].find(key) in (None, key * 1000)

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not caplog.messages
    assert len(list((base / "kernels").iterdir())) <= 4 * 2


def test_the_files_not_used_for_longest_make_room(base: Path) -> None:
    kept = KeptFiles("kernels", base, max_files=3)
    for number, key in enumerate((b"a", b"b", b"c")):
        kept.keep(key, key)
        for path in (base / "kernels").iterdir():
            if path.read_bytes().endswith(key):
                os.utime(path, (number, number))
    assert kept.find(b"a") == b"a"
    kept.keep(b"d", b"d")
    assert [kept.find(key) for key in (b"a", b"b", b"c", b"d")] == [b"a", None, b"c", b"d"]


def test_all_files_together_have_a_bound(base: Path) -> None:
    kept = KeptFiles("kernels", base, max_bytes=1000)
    for number in range(10):
        kept.keep(bytes([number]), bytes(400))
    assert sum(path.stat().st_size for path in (base / "kernels").iterdir()) <= 1000
    assert kept.find(bytes([9])) == bytes(400)


def test_where_nothing_can_be_kept_nothing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    kept = KeptFiles("kernels", tmp_path / "cache")
    kept.keep(b"one", b"code")
    assert kept.find(b"one") is None


def test_it_lies_where_the_user_keeps_such_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "vllm-obs"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_directory() == Path("/home/somebody/.cache/vllm-obs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/somebody/.cache/vllm-obs")
