"""The outputs of a step in which every sequence got one token and goes on, as most are: a message of their own."""

import operator
from math import isfinite
from typing import NamedTuple

import msgspec

from vllm_obs.engine.codec_plain import MAX_ITEMS, WireError
from vllm_obs.engine.messages import WIRE_VERSION, EngineCoreOutputs, SchedulerStats

GOES_ON = -1
NO_STOP = -1
MAX_TOKEN_ID = 2**31 - 1


class PlainStep(NamedTuple):
    """The fields of `EngineCoreOutputs` that are not the same in all such messages; the columns are parallel."""

    version: int
    client_index: int
    engine_index: int
    generation: int
    step: int
    request_ids: list[str]
    new_token_ids: list[int]
    num_cached_tokens: list[int]
    stats: SchedulerStats
    sampled_at: int
    sent_at: int


_ENCODER = msgspec.msgpack.Encoder(enc_hook=operator.index)
_DECODER = msgspec.msgpack.Decoder(PlainStep)


def is_plain(outputs: EngineCoreOutputs) -> bool:
    """Whether a message can be told so. It has rows then, and levels."""
    num_rows = len(outputs.request_ids)
    if not num_rows or outputs.num_new_tokens.count(1) != num_rows or outputs.finish_reasons.count(-1) != num_rows:
        return False
    if outputs.timings or outputs.logprobs or outputs.detours or outputs.errors or outputs.prompt_logprobs:
        return False
    if outputs.pooled or outputs.scheduled_ids or outputs.utility is not None or outputs.stats is None:
        return False
    return outputs.stop_token_ids.count(NO_STOP) == num_rows


def encode_plain(outputs: EngineCoreOutputs) -> bytes:
    """The payload of a message that `is_plain`. WireError for what may not travel."""
    try:
        payload = _ENCODER.encode(
            PlainStep(
                WIRE_VERSION,
                outputs.client_index,
                outputs.engine_index,
                outputs.generation,
                outputs.step,
                outputs.request_ids,
                outputs.new_token_ids,
                outputs.num_cached_tokens,
                outputs.stats,  # type: ignore[arg-type]
                outputs.sampled_at,
                outputs.sent_at,
            )
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError("type", str(error)) from None
    return payload


def decode_plain(payload: bytes | memoryview) -> EngineCoreOutputs:
    """The message in a payload, its columns checked to be parallel, or WireError.

    Nothing is allocated from a declared size: it must account for the bytes that really came.
    """
    try:
        plain = _DECODER.decode(payload)
    except msgspec.ValidationError as error:
        raise WireError("type", str(error)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError("decode", type(error).__name__) from None
    _check(plain)
    num_rows = len(plain.request_ids)
    return EngineCoreOutputs(
        plain.client_index,
        plain.engine_index,
        plain.generation,
        plain.step,
        plain.request_ids,
        [1] * num_rows,
        plain.new_token_ids,
        [GOES_ON] * num_rows,
        [NO_STOP] * num_rows,
        plain.num_cached_tokens,
        [],
        [],
        [],
        [],
        [],
        None,
        plain.stats,
        plain.sampled_at,
        plain.sent_at,
    )


def _check(plain: PlainStep) -> None:
    if plain.version != WIRE_VERSION:
        raise WireError("version", f"this side speaks version {WIRE_VERSION}")
    num_rows, token_ids = len(plain.request_ids), plain.new_token_ids
    if not 0 < num_rows <= MAX_ITEMS:
        raise WireError("size", f"{num_rows} rows; 1 to {MAX_ITEMS} are told")
    if len(token_ids) != num_rows or len(plain.num_cached_tokens) != num_rows:
        raise WireError("type", "columns of different lengths")
    if min(token_ids) < 0 or max(token_ids) > MAX_TOKEN_ID:
        raise WireError("type", "a token that is none")
    if not isfinite(plain.stats.kv_cache_usage):
        raise WireError("type", "expected a finite number")
