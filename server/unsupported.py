"""Fields of the API that this server does not serve yet: refused by name, never silently ignored."""

from collections.abc import Callable
from typing import Any

from vllm_obs.server.errors import ApiError

Wanted = Callable[[Any, dict[str, Any]], bool]


def _is_set(value: Any, fields: dict[str, Any]) -> bool:
    return not (value is False or value in (None, "", [], {}))


def _wants_more_modalities(value: Any, fields: dict[str, Any]) -> bool:
    return bool(value != ["text"])


def _is_there(value: Any, fields: dict[str, Any]) -> bool:
    return value is not None


def _is_not(*nothing: Any) -> Wanted:
    """Wanted is what is none of these."""
    return lambda value, fields: value not in nothing


def _is_not_n(value: Any, fields: dict[str, Any]) -> bool:
    return bool(value != fields.get("n", 1))


def _prewarms(value: Any, fields: dict[str, Any]) -> bool:
    return isinstance(value, dict) and bool(value.get("prewarm"))


UNSUPPORTED: dict[str, Wanted] = {
    "functions": _is_set,
    "function_call": _is_set,
    "structural_tag": _is_set,
    "suffix": _is_set,
    "prompt_embeds": _is_set,
    "chat_template": _is_set,
    "documents": _is_set,
    "modalities": _wants_more_modalities,
    "audio": _is_set,
    "mm_processor_kwargs": _is_set,
    "logits_processors": _is_set,
    "kv_transfer_params": _is_set,
    "ec_transfer_params": _is_set,
    "use_beam_search": _is_set,
    "vllm_xargs": _is_set,
    "return_routed_experts": _is_set,
    "return_token_offsets": _is_set,
    "thinking_token_budget": _is_not(-1),
    "watermarking": _is_set,
    "logprob_token_ids": _is_set,
    "repetition_detection": _is_set,
    "guided_whitespace_pattern": _is_set,
    "best_of": _is_not_n,
    "media_io_kwargs": _is_set,
    "web_search_options": _is_there,
    "moderation": _is_set,
    "previous_input_messages": _is_set,
    "enable_response_messages": _is_set,
    "prompt_cache_options": _prewarms,
    "compaction": _is_set,
    "thread": _is_set,
    "embed_dtype": _is_not("float32"),
    "endianness": _is_not("native", "little"),
    "max_tokens_per_query": _is_not(0),
    "max_tokens_per_doc": _is_not(0),
}
"""The field, and whether the value it has in a body asks for something."""


def refuse_unsupported(fields: dict[str, Any], served: frozenset[str] = frozenset()) -> None:
    """ApiError 400 `unsupported` for the first field that asks for what is not there and is not in `served`."""
    for name, is_wanted in UNSUPPORTED.items():
        if name in fields and name not in served and is_wanted(fields[name], fields):
            raise ApiError(f"{name} is not supported by this server", "unsupported", param=name)
