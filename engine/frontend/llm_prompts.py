"""The forms in which offline callers give prompts, parameters and priorities, made plain."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.frontend.input_processor import Prompt
from vllm_obs.engine.sampling_params import SamplingParams

Prompts = str | Mapping[str, Any] | Sequence[Any]
ParamsOrList = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids"})


def plain_prompts(prompts: Prompts) -> list[Prompt]:
    """One prompt or several as a list of texts and lists of ids. RequestError for what is none."""
    return [_plain(prompt) for prompt in _listed(prompts)]


def params_for_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """One set of parameters for each prompt. ValueError when a list's length differs."""
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    return _one_each(params, num_prompts, "sampling parameters")


def priorities_for_each(priorities: Sequence[int] | None, num_prompts: int) -> list[int]:
    """One priority for each prompt, 0 where none is given. ValueError when the lengths differ."""
    return [0] * num_prompts if priorities is None else _one_each(priorities, num_prompts, "priorities")


def _one_each(values: Sequence[T], num_prompts: int, what: str) -> list[T]:
    if len(values) != num_prompts:
        raise ValueError(f"There are {num_prompts} prompts and {len(values)} {what}.")
    return list(values)


def _listed(prompts: Prompts) -> list[Any]:
    """Several prompts as a list; one prompt (text, a dictionary, a flat list of ids) as a list of it."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and all(type(item) is int for item in listed) else listed


def _plain(prompt: Any) -> Prompt:
    if isinstance(prompt, Mapping):
        prompt = _of_dictionary(prompt)
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence):
        return list(prompt)
    raise RequestError("A prompt is text, a list of token ids, or a dictionary with one of them.", "prompt")


def _of_dictionary(prompt: Mapping[str, Any]) -> Any:
    """Its token ids, else its text. What else it may hold for other models would be left out in silence."""
    for key, value in prompt.items():
        if key not in _PROMPT_KEYS and value is not None:
            raise RequestError(f"A prompt cannot have {shown(key)} here.", "prompt", reason="unsupported")
    token_ids = prompt.get("prompt_token_ids")
    return prompt.get("prompt") if token_ids is None else token_ids
