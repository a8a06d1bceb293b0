"""A place in the code is told by function, file and line, and no path of this host is in it."""

import sys
from types import FrameType

import pytest

from vllm_obs.telemetry.sample_positions import MAX_NAME_CHARS, CodePositions, roots_of, short_file
from vllm_obs.telemetry.sample_set import Frame


def frame_here() -> FrameType:
    return sys._getframe()


def test_a_frame_has_function_file_and_line() -> None:
    positions, frame = CodePositions([]), frame_here()
    caller = frame.f_back
    assert caller is not None
    positions.keep([frame.f_code, caller.f_code])
    here = positions.frame(id(frame.f_code), frame.f_lasti)
    assert here == ("frame_here", "test_sample_positions.py", frame_here.__code__.co_firstlineno + 1)
    assert positions.frame(id(caller.f_code), 0).function == "test_a_frame_has_function_file_and_line"


def place_in(positions: CodePositions, **changed: str) -> Frame:
    """The begin of `frame_here` as if its code said something else."""
    code = frame_here.__code__.replace(**changed)  # type: ignore[arg-type]
    positions._codes[id(code)] = code
    return positions.frame(id(code), 0)


def test_a_file_is_told_from_its_package_on() -> None:
    positions = CodePositions(["/home/anna/site-packages", "/home/anna", ""])
    assert place_in(positions, co_filename="/home/anna/site-packages/pkg/mod.py").file == "pkg/mod.py"


def test_a_long_name_is_cut() -> None:
    assert place_in(CodePositions(), co_qualname="f" * 1000).function == "f" * MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/a/lib/threading.py", "threading.py"),
        ("/a/lib/site-packages/torch/nn/functional.py", "torch/nn/functional.py"),
        ("/secret/place/script.py", "script.py"),
        ("<string>", "<string>"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_files_are_relative_to_the_innermost_root(file: str, short: str) -> None:
    assert short_file(file, roots_of(["/a/lib", "/a/lib/site-packages/", "/a", ""])) == short
