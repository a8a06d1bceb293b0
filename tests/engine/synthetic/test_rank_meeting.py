"""RankMeeting: nobody goes on before everybody has come, and who does not come is named."""

import gc
import threading
from pathlib import Path

import pytest

from vllm_obs.engine.synthetic import rank_meeting
from vllm_obs.engine.synthetic.rank_meeting import RankMeeting


def test_a_rank_waits_for_the_other(tmp_path: Path) -> None:
    first, second = (RankMeeting(tmp_path / "x.ranks", rank, 2) for rank in range(2))
    went_on = threading.Event()

    def come() -> None:
        first.meet(1)
        went_on.set()

    thread = threading.Thread(target=come)
    thread.start()
    assert not went_on.wait(0.05)
    second.meet(1)
    assert went_on.wait(10)
    thread.join(10)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_meeting, "MEET_TIMEOUT_SECONDS", 0.01)
    meeting = RankMeeting(tmp_path / "x.ranks", 0, 2)
    with pytest.raises(TimeoutError, match="rank 1 did not come to step 3 within"):
        meeting.meet(3)


def test_an_earlier_step_was_waited_for_already(tmp_path: Path) -> None:
    first = RankMeeting(tmp_path / "x.ranks", 0, 2)
    with (tmp_path / "x.ranks").open("r+b") as file:
        file.seek(8)
        file.write((9).to_bytes(8, "little"))
    first.meet(5)


def test_what_nobody_uses_any_more_is_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "x.ranks"
    RankMeeting(path, 0, 2).meet(0)
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()
