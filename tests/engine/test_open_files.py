"""How many files a process may open, and whether it is enough to start."""

import resource

import pytest

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.open_files import NUM_OWN_FILES, raise_file_limit, require_files

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ((1024, 4096), 4096),
        ((1024, 1 << 30), 8192 + NUM_OWN_FILES),
        ((1024, INFINITY), 8192 + NUM_OWN_FILES),
        ((20_000, 1 << 30), None),
        ((1024, 1024), None),
        ((INFINITY, INFINITY), None),
    ],
)
def test_a_process_opens_as_many_files_as_connections_need_and_it_may(
    limits: tuple[int, int], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: told.append(pair))
    raise_file_limit(8192)
    assert told == ([] if most is None else [(most, limits[1])])


def test_a_sandbox_that_forbids_it_does_not_keep_the_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(which: int, pair: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbid)
    raise_file_limit(8192)


@pytest.mark.parametrize(("soft", "hard"), [(16, 16), (63, 63)])
def test_too_few_files_to_start_are_told_of_in_one_line(
    soft: int, hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: None)
    with pytest.raises(ConfigError, match=rf"only {soft} files may be open at once \(ulimit -n\): 64 are needed"):
        require_files()


@pytest.mark.parametrize("limits", [(64, 64), (1024, INFINITY), (INFINITY, INFINITY)])
def test_enough_files_are_enough(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: None)
    require_files()
