"""The GGUF reader against the gguf library's, and against files that lie."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import write_gguf

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.gguf_file import GGUFFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def test_metadata_and_tensors_equal_the_librarys(path: Path) -> None:
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert ours.metadata["tokenizer.ggml.merges"] == ["a b", "b ☃"]
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(tensor.shape[::-1].tolist())
        assert found.offset == tensor.data_offset
        assert np.array_equal(ours.raw(tensor.name).reshape(-1), tensor.data.view(np.uint8).reshape(-1))


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
    values = {
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -5,
        "u64": 2**63,
        "i64": -6,
    }
    adders = {
        "u8": writer.add_uint8,
        "i8": writer.add_int8,
        "u16": writer.add_uint16,
        "i16": writer.add_int16,
        "u32": writer.add_uint32,
        "i32": writer.add_int32,
        "u64": writer.add_uint64,
        "i64": writer.add_int64,
    }
    for key, value in values.items():
        adders[key](key, value)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_array("numbers", [1.5, 2.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = values | {"f32": 0.5, "f64": 0.1, "yes": True, "numbers": [1.5, 2.5]}
    assert GGUFFile(tmp_path / "types.gguf").metadata == {"general.architecture": "llama"} | expected


def test_a_file_cut_anywhere_is_a_config_error(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 64), *range(64, len(whole) - 64, 997), len(whole) - 4097]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ConfigError) as caught:
            GGUFFile(cut)
        assert str(caught.value).startswith(str(cut))
        assert "\n" not in str(caught.value)


def test_random_damage_to_the_header_never_raises_anything_else(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    draw = random.Random(11)
    for _ in range(300):
        copy = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            copy[draw.randrange(3000)] = draw.choice([0, 1, 0x7F, 0xFF, draw.randrange(256)])
        damaged.write_bytes(copy)
        try:
            GGUFFile(damaged)
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017 - damage that does no harm is fine too


@pytest.mark.parametrize(
    ("at", "form", "value", "said"),
    [
        (0, "4s", b"GGML", "not a GGUF file"),
        (4, "<I", 1, "version 1 is not supported"),
        (4, ">I", 3, "version 50331648 is not supported"),
        (8, "<Q", 2**60, "table of 1152921504606846976 tensors"),
        (16, "<Q", 2**62, "table of 4611686018427387904 metadata pairs"),
        (24, "<Q", 2**63, "a string of 9223372036854775808 bytes"),
    ],
)
def test_each_lie_of_the_header_is_named(path: Path, at: int, form: str, value: object, said: str) -> None:
    copy = bytearray(path.read_bytes())
    struct.pack_into(form, copy, at, value)
    path.write_bytes(copy)
    with pytest.raises(ConfigError, match=said):
        GGUFFile(path)


def test_an_unsupported_quantisation_is_named_with_its_tensor(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q2_K
    writer = gguf.GGUFWriter(tmp_path / "q2.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 84), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"tensor blk.0.attn_q.weight has GGUF type Q2_K \(10\); supported: F32"):
        GGUFFile(tmp_path / "q2.gguf")


def test_a_missing_or_empty_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match="the file is empty"):
        GGUFFile(tmp_path / "empty.gguf")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        GGUFFile(tmp_path / "none.gguf")
