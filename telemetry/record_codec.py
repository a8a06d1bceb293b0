"""How a record becomes bytes and a record again: a msgpack array of kind, schema version and fields."""

import operator
from collections import namedtuple
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, get_type_hints

import msgspec

from vllm_obs.telemetry import records
from vllm_obs.telemetry.records import SCHEMA_VERSION, Record

KINDS: dict[type[Record], int] = {
    records.ProcessStarted: 1,
    records.ProcessPhase: 2,
    records.ProcessReady: 3,
    records.ProcessExited: 4,
    records.RequestSubmitted: 5,
    records.RequestEnded: 6,
    records.HttpRequestEnded: 7,
    records.RequestTaken: 8,
    records.RequestReleased: 9,
    records.StepPlanned: 10,
    records.StepAnswered: 11,
    records.StepFailed: 12,
    records.BlocksChanged: 13,
    records.BlocksCached: 14,
    records.WorkerStep: 15,
    records.FrameDropped: 16,
    records.EngineDescribed: 17,
    records.EngineStateChanged: 18,
    records.OutputsTaken: 19,
    records.LoopSampled: 20,
    records.TelemetrySet: 21,
    records.BlocksKeyframe: 22,
    records.RequestKeyframe: 23,
    records.GarbageSampled: 24,
    records.MemorySampled: 25,
    records.ProfileBegun: 26,
    records.ProfileEnded: 27,
    records.StallBegun: 28,
    records.StallEnded: 29,
    records.IncidentFiled: 30,
    records.WorkerLimits: 31,
    records.EngineRestarted: 32,
    records.EngineGivenUp: 33,
}
"""The number of each kind of record. Numbers are in ring files: below 128, never reused, never changed."""

NUM_PREFIX_FIELDS = 2
PREFIXES: dict[type[Record], tuple[int, int]] = {kind: (number, SCHEMA_VERSION) for kind, number in KINDS.items()}
"""What stands before a record's own fields."""

ENCODER = msgspec.msgpack.Encoder(enc_hook=operator.index)
"""Writes `PREFIXES[type(record)] + record`. The hook takes whole numbers that are no `int` (numpy's)."""

_ARRAY16 = 0xDC
_ARRAY32 = 0xDD


def encode(record: Record) -> bytes:
    """The payload of a record. Raises TypeError, KeyError, OverflowError or UnicodeEncodeError if it has none."""
    return ENCODER.encode(PREFIXES[type(record)] + record)


class RecordDecoder:
    """Turns payloads into records, strictly typed, and counts what it could not use.

    `num_unknown` payloads are of a kind, and `num_newer` of a schema, that a newer writer has; of the latter the
    fields known here are used. `num_undecodable` are not what their kind promises.
    """

    def __init__(self) -> None:
        self.num_unknown = 0
        self.num_newer = 0
        self.num_undecodable = 0
        self._readers = {number: _PayloadReader.of(kind) for kind, number in KINDS.items()}

    def decode(self, payload: bytes) -> Record | None:
        """The record in a payload, or None (counted) where there is none that we know."""
        try:
            reader = self._readers.get(kind_number(payload))
            if reader is None:
                self.num_unknown += 1
                return None
            try:
                return reader.make(reader.decode_whole(payload)[NUM_PREFIX_FIELDS:])
            except msgspec.ValidationError:
                return self._decode_other(reader, payload)
        except (msgspec.DecodeError, ValueError, IndexError, RecursionError):
            self.num_undecodable += 1
            return None

    def _decode_other(self, reader: "_PayloadReader", payload: bytes) -> Record:
        try:
            return reader.decode_older(payload)
        except msgspec.ValidationError:
            record = reader.decode_newer(payload)
            self.num_newer += 1
            return record


def kind_number(payload: bytes) -> int:
    """The kind a payload says it is, without decoding the rest. Raises IndexError if it is cut short."""
    first = payload[0]
    return payload[3 if first == _ARRAY16 else 5 if first == _ARRAY32 else 1]


class _PayloadReader(NamedTuple):
    """Decodes the payloads of one kind. `make` takes all its fields; `decode_whole` gives them behind two of ours.

    Of a record whose fields are those of this version msgspec checks and builds one plain tuple in C.
    """

    kind: type[Record]
    make: Callable[[tuple[Any, ...]], Record]
    decode_whole: Callable[[bytes], tuple[Any, ...]]

    @classmethod
    def of(cls, kind: type[Record]) -> "_PayloadReader":
        types = (int, int, *get_type_hints(kind).values())
        whole: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(tuple[types]).decode  # type: ignore[valid-type]
        return cls(kind, partial(tuple.__new__, kind), whole)

    def decode_older(self, payload: bytes) -> Record:
        """A record of a writer that did not know the last fields, which have their defaults then."""
        return self.kind(*_older_reader(self.kind)(payload)[NUM_PREFIX_FIELDS:])  # type: ignore[arg-type]

    def decode_newer(self, payload: bytes) -> Record:
        """The fields we know of a record that a newer writer added fields to; ValidationError for any other."""
        parts = msgspec.msgpack.decode(payload, type=list[Any])
        num_fields = len(self.kind._fields)
        version = parts[1] if len(parts) > NUM_PREFIX_FIELDS + num_fields else 0
        if not isinstance(version, int) or version <= SCHEMA_VERSION:
            raise msgspec.ValidationError(f"{self.kind.__name__}: these are not its fields")
        return msgspec.convert(parts[NUM_PREFIX_FIELDS : NUM_PREFIX_FIELDS + num_fields], self.kind)


@cache
def _older_reader(kind: Any) -> Callable[[bytes], tuple[Any, ...]]:
    types = {"kind_number": int, "schema_version": int, **get_type_hints(kind)}
    payload = namedtuple(kind.__name__, list(types), defaults=list(kind._field_defaults.values()))  # type: ignore[misc]
    payload.__annotations__ = types
    decode: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(payload).decode
    return decode
