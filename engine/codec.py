"""Strict, typed readers and writers of NamedTuples, made once from their type hints."""

import types
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from vllm_obs.engine.codec_arrays import ArrayReader
from vllm_obs.engine.codec_columns import pack_int_lists, pack_ints, unpack_int_lists, unpack_ints
from vllm_obs.engine.codec_plain import WireError, read_plain

Reader = Callable[[Any, ArrayReader], Any]
Writer = Callable[[Any], Any]


class Codec(NamedTuple):
    """How one type travels. `write` makes it ready for msgpack; `read` checks it or raises WireError."""

    write: Writer
    read: Reader


def write_fields(message: Any) -> list[Any]:
    """The fields of a NamedTuple, ready for msgpack."""
    codecs = _field_codecs(type(message))
    return [codec.write(value) for codec, value in zip(codecs, message, strict=True)]


def read_fields(kind: type[Any], values: Any, arrays: ArrayReader) -> Any:
    """The NamedTuple of that kind made from a list of its fields; WireError when one does not fit."""
    codecs = _field_codecs(kind)
    if type(values) is not list or len(values) != len(codecs):
        raise WireError("type", f"{kind.__name__} has {len(codecs)} fields")
    return kind(*[codec.read(value, arrays) for codec, value in zip(codecs, values, strict=True)])


def _field_codecs(kind: type[Any]) -> list[Codec]:
    if kind not in _CODECS:
        _CODECS[kind] = [_codec_for(hint) for hint in get_type_hints(kind).values()]
    return _CODECS[kind]


def _codec_for(hint: Any) -> Codec:
    if hint in _LEAVES:
        return _LEAVES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is np.ndarray:
        return _array(get_args(arguments[1])[0])
    if origin is list:
        return _list_of(arguments[0])
    if origin is tuple:
        return _tuple_of(arguments)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return Codec(write_fields, lambda value, arrays: read_fields(hint, value, arrays))
    raise TypeError(f"no codec for {hint!r}")


def _optional(arguments: tuple[Any, ...]) -> Codec:
    inner, *others = [argument for argument in arguments if argument is not types.NoneType]
    assert not others, "a field is of one type, or None"
    codec = _codec_for(inner)
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda value, arrays: None if value is None else codec.read(value, arrays),
    )


def _list_of(item: Any) -> Codec:
    if item is int:
        return Codec(pack_ints, _guarded(unpack_ints))
    if item == list[int]:
        return Codec(pack_int_lists, _guarded(unpack_int_lists))
    if item is str:
        return Codec(_as_is, _read_strings)
    codec = _codec_for(item)

    def read(value: Any, arrays: ArrayReader) -> list[Any]:
        return [codec.read(entry, arrays) for entry in _read_list(value)]

    return Codec(lambda value: [codec.write(entry) for entry in value], read)


def _tuple_of(items: tuple[Any, ...]) -> Codec:
    if len(items) == 2 and items[1] is Ellipsis:
        whole = _list_of(items[0])
        return Codec(whole.write, lambda value, arrays: tuple(whole.read(value, arrays)))
    codecs = [_codec_for(item) for item in items]

    def read(value: Any, arrays: ArrayReader) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(codecs):
            raise WireError("type", f"expected {len(codecs)} entries")
        return tuple(codec.read(entry, arrays) for codec, entry in zip(codecs, value, strict=True))

    return Codec(lambda value: [codec.write(e) for codec, e in zip(codecs, value, strict=True)], read)


def _array(scalar: type[np.generic]) -> Codec:
    dtype = np.dtype(scalar)

    def read(value: Any, arrays: ArrayReader) -> Any:
        try:
            return arrays.read(value, dtype)
        except ValueError as error:
            raise WireError("type", str(error)) from None

    return Codec(_as_is, read)


def _guarded(unpack: Callable[[Any], Any]) -> Reader:
    def read(value: Any, _: ArrayReader) -> Any:
        try:
            return unpack(value)
        except ValueError as error:
            raise WireError("type", str(error)) from None

    return read


def _exactly(kind: type[Any]) -> Codec:
    def read(value: Any, _: ArrayReader) -> Any:
        if type(value) is not kind:
            raise WireError("type", f"expected {kind.__name__}")
        return value

    return Codec(_as_is, read)


def _as_is(value: Any) -> Any:
    return value


def _read_float(value: Any, _: ArrayReader) -> float:
    if type(value) not in (float, int) or not isfinite(value):
        raise WireError("type", "expected a finite number")
    return float(value)


def _read_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise WireError("type", "expected a list")
    return value


def _read_strings(value: Any, _: ArrayReader) -> list[str]:
    try:
        "".join(_read_list(value))
    except TypeError:
        raise WireError("type", "expected a list of strings") from None
    result: list[str] = value
    return result


_CODECS: dict[type[Any], list[Codec]] = {}
_LEAVES: dict[Any, Codec] = {
    int: _exactly(int),
    float: Codec(_as_is, _read_float),
    str: _exactly(str),
    bytes: _exactly(bytes),
    bool: _exactly(bool),
    Any: Codec(_as_is, lambda value, _: read_plain(value)),
}
