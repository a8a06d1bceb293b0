"""Texts to vectors: handed to the engine like any request, and taken back whole."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import Request

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import Float32Array
from vllm_obs.engine.pooling.params import pooling_params
from vllm_obs.server.disconnect import until_disconnect
from vllm_obs.server.errors import ApiError
from vllm_obs.server.generation import Call, Generation, Prompt
from vllm_obs.server.schema_embeddings import PoolingRequest
from vllm_obs.server.state import ApiServer

OPERATION = "embeddings"
MAX_TOTAL_CHARS = 4_194_304
MAX_TOTAL_TOKENS = 1_048_576


@dataclass(frozen=True)
class Embedded:
    """The engine's vectors, float32 (hidden,), in the order of the texts; counts are over all of them."""

    vectors: list[Float32Array]
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True)
class Texts:
    """What is to become vectors, and the field of the body that it stands in."""

    prompts: list[Prompt]
    param: str


async def embed(http: Request, api: ApiServer, request: PoolingRequest, call: Call, texts: Texts) -> Embedded:
    """A vector of each text; ApiError where one cannot be had, ClientGoneError when nobody waits any more."""
    _check_total(texts)
    params = pooling_params(api.config.model.pooling.kind, request.truncate_prompt_tokens)
    with prompts_are(texts.param):
        call.ask(len(texts.prompts))
        prompts = await _prompts(api, request, texts)
        generation = await Generation.submit(api, call, prompts, params)
    try:
        ended = await until_disconnect(http.receive, generation.collect())
    finally:
        await generation.aclose()
    vectors = [delta.pooled for delta in ended if delta.pooled is not None]
    if len(vectors) < len(ended):  # aborted from outside: the server is being shut down
        raise ApiError("the request was ended before it was finished", "shutting_down")
    return Embedded(
        vectors,
        num_prompt_tokens=sum(delta.num_prompt_tokens for delta in ended),
        num_cached_tokens=sum(delta.num_cached_tokens for delta in ended),
    )


@contextmanager
def prompts_are(param: str) -> Iterator[None]:
    """What the engine has against the prompts, or their number, is said of the field that they came in."""
    try:
        yield
    except RequestError as error:
        named = param if error.param in ("prompt", "n") else error.param
        raise ApiError(str(error), error.reason, param=named) from error


def _check_total(texts: Texts) -> None:
    for kind, unit, most in ((str, "characters", MAX_TOTAL_CHARS), (list, "token ids", MAX_TOTAL_TOKENS)):
        total = sum(len(prompt) for prompt in texts.prompts if isinstance(prompt, kind))
        if total > most:
            message = f"{texts.param} holds {total} {unit} in all; at most {most} may be"
            raise ApiError(message, "too_many_sequences", param=texts.param)


async def _prompts(api: ApiServer, request: PoolingRequest, texts: Texts) -> list[Prompt]:
    """The texts as the engine takes them: as they are, or as ids where it is not to add its special tokens."""
    if request.add_special_tokens:
        return texts.prompts
    return [
        await api.engine.llm.inputs.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        for prompt in texts.prompts
    ]


def pooling_call(http: Request, api: ApiServer, request: PoolingRequest) -> Call:
    """The call of a request that has just been parsed; no room is asked for yet."""
    state, now = http.scope["state"], time.monotonic_ns()
    return Call(
        request_id=state["request_id"],
        label=state["label"],
        account=state.get("account", ""),
        operation=OPERATION,
        model=api.served_name(request.model),
        trace_parent=state["trace_parent"],
        received_at=state["received_at"],
        parsed_at=now,
        rendered_at=now,
        priority=request.priority,
        cache_salt=request.cache_salt,
        cache_owner=state.get("cache_owner", ""),
        stream=False,
        deadline=state.get("deadline"),
        entry=state.get("entry"),
    )
