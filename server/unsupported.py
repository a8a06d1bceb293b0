"""Fields of the API that this server does not serve yet: refused by name, never silently ignored."""

from collections.abc import Callable
from typing import Any

from vllm_obs.server.errors import ApiError

Wanted = Callable[[Any, dict[str, Any]], bool]


def _is_set(value: Any, fields: dict[str, Any]) -> bool:
    return not (value is False or value in (None, "", [], {}))


def _wants_more_modalities(value: Any, fields: dict[str, Any]) -> bool:
    return bool(value != ["text"])


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
}
"""The field, and whether the value it has in a body asks for something."""


def refuse_unsupported(fields: dict[str, Any], served: frozenset[str] = frozenset()) -> None:
    """ApiError 400 `unsupported` for the first field that asks for what is not there and is not in `served`."""
    for name, is_wanted in UNSUPPORTED.items():
        if name in fields and name not in served and is_wanted(fields[name], fields):
            raise ApiError(f"{name} is not supported by this server", "unsupported", param=name)
