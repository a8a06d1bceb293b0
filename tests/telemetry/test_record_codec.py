"""Records survive the way into bytes and back, and bytes from elsewhere are counted instead of believed."""

import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.telemetry import records
from vllm_obs.telemetry.record_codec import KINDS, RecordDecoder, encode, kind_number
from vllm_obs.telemetry.records import (
    SCHEMA_VERSION,
    BlocksCached,
    FrameDropped,
    ProcessReady,
    Record,
    StepAnswered,
)

DECODER = RecordDecoder()
INT = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES: dict[object, st.SearchStrategy[object]] = {
    int: INT,
    str: TEXT,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    list[list[int]]: st.lists(st.lists(INT, max_size=4), max_size=4),
    list[int]: st.lists(INT, max_size=20),
    list[str]: st.lists(TEXT, max_size=4),
    list[bytes]: st.lists(st.binary(max_size=9), max_size=4),
}


def any_of(kind: type[Record]) -> st.SearchStrategy[Record]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, *(VALUES[hint] for hint in hints.values()))


@given(st.one_of([any_of(kind) for kind in KINDS]))
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    again = DECODER.decode(encode(record))
    assert again == record
    assert type(again) is type(record)


def test_every_kind_of_record_has_a_number_of_its_own() -> None:
    assert set(KINDS) == set(typing.get_args(records.Record))
    assert len(set(KINDS.values())) == len(KINDS)
    assert all(0 < number < 128 for number in KINDS.values())


def test_the_numbers_in_ring_files_keep_their_meaning() -> None:
    assert {kind.__name__: number for kind, number in KINDS.items()} == {
        "ProcessStarted": 1,
        "ProcessPhase": 2,
        "ProcessReady": 3,
        "ProcessExited": 4,
        "RequestSubmitted": 5,
        "RequestEnded": 6,
        "HttpRequestEnded": 7,
        "RequestTaken": 8,
        "RequestReleased": 9,
        "StepPlanned": 10,
        "StepAnswered": 11,
        "StepFailed": 12,
        "BlocksChanged": 13,
        "BlocksCached": 14,
        "WorkerStep": 15,
        "FrameDropped": 16,
        "EngineDescribed": 17,
        "EngineStateChanged": 18,
        "OutputsTaken": 19,
        "LoopSampled": 20,
        "TelemetrySet": 21,
        "BlocksKeyframe": 22,
        "RequestKeyframe": 23,
        "GarbageSampled": 24,
        "MemorySampled": 25,
        "ProfileBegun": 26,
        "ProfileEnded": 27,
        "StallBegun": 28,
        "StallEnded": 29,
        "IncidentFiled": 30,
        "WorkerLimits": 31,
        "EngineRestarted": 32,
        "EngineGivenUp": 33,
    }


def test_a_payload_is_a_msgpack_array_of_kind_version_and_fields() -> None:
    payload = encode(ProcessReady("Observer", 7, 9))
    assert msgspec.msgpack.decode(payload) == [3, SCHEMA_VERSION, "Observer", 7, 9]


@pytest.mark.parametrize("num_fields", [1, 20, 70_000])
def test_the_kind_is_found_whatever_the_length_of_the_array(num_fields: int) -> None:
    assert kind_number(msgspec.msgpack.encode([99, *range(num_fields)])) == 99


def test_whole_numbers_of_numpy_are_taken() -> None:
    answered = StepAnswered(np.int64(3), 1, 2, 3, ["a"], [np.int32(4)], 0)  # type: ignore[arg-type, list-item]
    assert RecordDecoder().decode(encode(answered)) == StepAnswered(3, 1, 2, 3, ["a"], [4], 0)


@pytest.mark.parametrize(
    "record",
    [FrameDropped("\ud800", "decode", 1), FrameDropped("w", "r", 2**64), FrameDropped("w", "r", 1j), "text"],
)
def test_what_cannot_be_encoded_is_an_error(record: Record) -> None:
    with pytest.raises((TypeError, KeyError, OverflowError, UnicodeEncodeError)):
        encode(record)


def test_an_unknown_kind_is_counted() -> None:
    decoder = RecordDecoder()
    assert decoder.decode(msgspec.msgpack.encode([127, 1, "x"])) is None
    assert (decoder.num_unknown, decoder.num_undecodable) == (1, 0)


def test_fields_that_a_newer_schema_added_are_left_out() -> None:
    decoder = RecordDecoder()
    payload = msgspec.msgpack.encode([3, SCHEMA_VERSION + 1, "Observer", 7, 9, "new", [1]])
    assert decoder.decode(payload) == ProcessReady("Observer", 7, 9)
    assert (decoder.num_newer, decoder.num_undecodable) == (1, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x93",
        b"\xdc\x00",
        b"\x01\x02",
        msgspec.msgpack.encode([3, 1, "Observer", 7]),
        msgspec.msgpack.encode([3, 1, "Observer", 7, 9, 11]),
        msgspec.msgpack.encode([3, 1, "Observer", 7, "9"]),
        msgspec.msgpack.encode([3, 1, "Observer", 7, 9.5]),
        msgspec.msgpack.encode([3, 1, "Observer", True, 9]),
        msgspec.msgpack.encode([3, 2, "Observer", 7, "9", 11]),
        msgspec.msgpack.encode([3, 2, "Observer", 7]),
        msgspec.msgpack.encode([3, "x", "Observer", 7, 9, 11]),
        encode(BlocksCached(1, [2], [b"h"], False))[:-1],
        encode(BlocksCached(1, [2], [b"h"], False)) + b"\0",
        b"\xdd\xff\xff\xff\xff\x03",
        b"\x91" * 10_000,
    ],
)
def test_what_is_not_a_record_is_counted(payload: bytes) -> None:
    decoder = RecordDecoder()
    assert decoder.decode(payload) is None
    assert decoder.num_unknown + decoder.num_undecodable == 1


@given(st.binary(max_size=64))
def test_no_bytes_raise(payload: bytes) -> None:
    DECODER.decode(payload)
    DECODER.decode(b"\x93\x03\x01" + payload)
