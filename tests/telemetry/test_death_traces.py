"""What a dead process left: its crash, its last exception without its words, its last lines."""

from pathlib import Path

import pytest

from vllm_obs.telemetry.death_traces import (
    MAX_LINE_CHARS,
    MAX_LINES,
    MAX_TAIL_BYTES,
    Trace,
    crash_of,
    exception_of,
    last_words_of,
    log_tail,
    without_quotes,
)

ROLE = "EngineCore_DP0"
CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 10 in wait

Current thread 0x00007e (most recent call first):
  File "/x/src/vllm_obs/engine/core.py", line 42 in step
  File "/x/src/vllm_obs/engine/process.py", line 7 in run
"""
LOG = """\
00:00:00.000 ERROR   [EngineCore_DP0] vllm_obs.engine.core: step 1 failed
Traceback (most recent call last):
  File "/x/src/vllm_obs/engine/core.py", line 1, in step
    raise KeyError(prompt)
KeyError: 'a prompt'
00:00:00.001 INFO    [EngineCore_DP0] vllm_obs.engine.core: between
Traceback (most recent call last):
  File "/x/src/vllm_obs/engine/core.py", line 1, in step
    hop()
  File "/y/site-packages/torch/_ops.py", line 5, in __call__
    return 1
torch.cuda.OutOfMemoryError: a prompt
00:00:00.002 ERROR   [EngineCore_DP0] vllm_obs.engine.child_main: RuntimeError: a prompt
00:00:00.003 ERROR   [EngineCore_DP0] vllm_obs.engine.child_main: 3 steps failed
"""


def test_a_crash_is_the_last_in_its_file_and_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / f"{ROLE}.fault"
    assert crash_of(tmp_path, ROLE) is None
    path.write_text("")
    assert crash_of(tmp_path, ROLE) is None
    path.write_text("Fatal Python error: Aborted\n\nold\n" + CRASH)
    assert crash_of(tmp_path, ROLE) == (Trace("Segmentation fault", "engine/core.py:42 in step"), CRASH)
    assert crash_of(tmp_path, ROLE, path.stat().st_mtime_ns + 1) is None


def test_an_exception_is_told_by_type_and_place_alone(tmp_path: Path) -> None:
    assert exception_of(tmp_path, ROLE) is None
    (tmp_path / f"{ROLE}.log").write_text(LOG)
    assert exception_of(tmp_path, ROLE) == Trace("OutOfMemoryError", "torch/_ops.py:5 in __call__")
    assert last_words_of(tmp_path, ROLE) == "3 steps failed"
    assert last_words_of(tmp_path, "Worker_TP0") == ""


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("Worker_TP1 was killed by SIGKILL", "Worker_TP1 was killed by SIGKILL"),
        ("KeyError: 'a prompt'", "KeyError"),
        ("3 steps failed, the last with KeyError('a (prompt)')", "3 steps failed, the last with KeyError"),
    ],
)
def test_words_that_may_quote_a_request_are_left_out(words: str, left: str) -> None:
    assert without_quotes(words) == left


def test_a_tail_is_bounded_in_lines_and_in_length_and_reaches_into_the_older_log(tmp_path: Path) -> None:
    path = tmp_path / f"{ROLE}.log"
    path.write_text("new 1\nnew 2\n")
    (tmp_path / f"{ROLE}.log.1").write_text("".join(f"old {number}\n" for number in range(300)))
    assert log_tail(tmp_path, ROLE)[-3:] == ["old 299", "new 1", "new 2"]
    assert len(log_tail(tmp_path, ROLE)) == MAX_LINES
    path.write_text("x" * (2 * MAX_TAIL_BYTES) + "\n" + "y" * 5000 + "\n")
    assert log_tail(tmp_path, ROLE, 1) == ["y" * MAX_LINE_CHARS]
