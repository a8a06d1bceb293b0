"""The directories of profiles are read with care: only finished files of profiles, found by looking them up."""

import os
from pathlib import Path

from vllm_obs.telemetry import profile_files
from vllm_obs.telemetry.profile_files import ProfileFiles


def write(directory: Path, *names: str, content: str = "{}") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text(content)


def test_finished_files_are_listed_by_name(tmp_path: Path) -> None:
    files = ProfileFiles(tmp_path)
    place = tmp_path / "profiles" / "a"
    write(
        place, "Worker_TP0.operators.json", "Worker_TP0.trace.json.gz", "Worker_TP1.operators.json.part", ".x.json"
    )
    (place / "folder").mkdir()
    (place / "link.json").symlink_to("/etc/passwd")
    assert files.names() == ["a"]
    assert [(file.name, file.num_bytes) for file in files.files("a")] == [
        ("Worker_TP0.operators.json", 2),
        ("Worker_TP0.trace.json.gz", 2),
    ]


def test_no_other_name_leads_anywhere(tmp_path: Path) -> None:
    files = ProfileFiles(tmp_path)
    write(tmp_path / "profiles" / "a", "Worker_TP0.operators.json")
    write(tmp_path / "secret", "Worker_TP0.operators.json")
    (tmp_path / "profiles" / "linked").symlink_to(tmp_path / "secret")
    for name in ("..", "../secret", ".", "", "linked", "b", "/etc", "a/../../secret"):
        assert files.files(name) == []
    assert files.names() == ["a"]


def test_what_is_no_profile_in_a_directory_of_the_users_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "photos", "one.json")
    write(tmp_path / "p", "EngineCore_DP0.samples.json")
    assert ProfileFiles(Path("/nowhere"), str(tmp_path)).names() == ["p"]
    assert ProfileFiles(Path("/nowhere")).names() == []


def test_the_newest_come_first_and_their_number_is_bounded(tmp_path: Path) -> None:
    files = ProfileFiles(tmp_path)
    for number in range(profile_files.MAX_PROFILES + 3):
        place = tmp_path / "profiles" / f"p{number:02}"
        write(place, "Worker_TP0.operators.json")
        os.utime(place, (number, number))
    names = files.names()
    assert len(names) == profile_files.MAX_PROFILES
    assert names[0] == f"p{profile_files.MAX_PROFILES + 2:02}"


def test_tables_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "profiles" / "a"
    write(place, "Worker_TP0.operators.json", content='{"rank": 0}')
    write(place, "Worker_TP1.operators.json", content="nonsense")
    write(place, "Worker_TP2.operators.json", content="[]")
    assert ProfileFiles(tmp_path).tables("a") == [{"rank": 0}]


def test_a_name_that_is_free(tmp_path: Path) -> None:
    files = ProfileFiles(tmp_path)
    first = files.free_name("operators")
    assert first.endswith("-operators")
    (tmp_path / "profiles" / first).mkdir(parents=True)
    assert files.free_name("operators") != first
