"""Machine code is made once: a later process loads what an earlier one kept, if whole and of the same sources."""

import ctypes
from pathlib import Path

import pytest
from llvmlite import ir

from vllm_obs.engine.kept_files import KeptFiles
from vllm_obs.engine.kernels.cpu import jit
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter
from vllm_obs.engine.kernels.cpu.jit import CompiledModule


class Doubling:
    """Emits a function that writes twice a number to where a pointer says; counts how often it was asked to."""

    def __init__(self) -> None:
        self.num_emitted = 0

    def __call__(self, module: ir.Module) -> None:
        self.num_emitted += 1
        emit = Emitter(module, "double", [POINTER, I64], 8)
        place, number = emit.arguments
        emit.store(emit.mul(number, 2), place, 0)
        emit.finish()


def doubled(module: CompiledModule, number: int) -> int:
    found = ctypes.c_int64()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(module.address("double"))
    run(ctypes.addressof(found), number)
    return found.value


@pytest.fixture
def kept(tmp_path: Path) -> KeptFiles:
    tmp_path.chmod(0o700)
    return KeptFiles("kernels", tmp_path)


def test_code_that_was_kept_is_loaded_and_does_the_same(kept: KeptFiles) -> None:
    first, second = Doubling(), Doubling()
    made = CompiledModule("double", first, kept)
    loaded = CompiledModule("double", second, kept)
    assert [first.num_emitted, second.num_emitted] == [1, 0]
    assert [made.was_kept, loaded.was_kept] == [False, True]
    assert doubled(made, 21) == doubled(loaded, 21) == 42


def test_another_name_is_other_code(kept: KeptFiles) -> None:
    CompiledModule("double", Doubling(), kept)
    assert not CompiledModule("double, with other parameters", Doubling(), kept).was_kept


def test_changed_sources_make_other_code(kept: KeptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    CompiledModule("double", Doubling(), kept)
    monkeypatch.setattr(jit, "_sources_digest", lambda: "another")
    assert not CompiledModule("double", Doubling(), kept).was_kept
    monkeypatch.setattr(jit, "_sources_digest", lambda: "")  # nothing tells what the code depends on
    CompiledModule("double", Doubling(), kept)
    assert not CompiledModule("double", Doubling(), kept).was_kept


def test_damaged_code_is_made_again(kept: KeptFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CompiledModule("double", Doubling(), kept)
    (path,) = (tmp_path / "kernels").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again = CompiledModule("double", Doubling(), kept)
    assert not again.was_kept
    assert "it is damaged" in caplog.text
    assert doubled(again, 4) == 8
    assert CompiledModule("double", Doubling(), kept).was_kept
