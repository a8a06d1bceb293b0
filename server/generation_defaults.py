"""A request for generation, read with the server's defaults for what its client left open."""

from typing import TypeVar

from pydantic import BaseModel

from vllm_obs.engine.config import GenerationConfig
from vllm_obs.engine.generation_defaults import SAMPLING_DEFAULTS
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_request

Model = TypeVar("Model", bound=BaseModel)


async def parse_generation(kind: type[Model], body: bytes, api: ApiServer) -> Model:
    """As `parse_request`, and what the client did not say is as the server's operator or the model has it."""
    request = await parse_request(kind, body, api.server.limits.max_json_depth)
    return with_defaults(request, api.config.model.generation)


def with_defaults(request: Model, defaults: GenerationConfig) -> Model:
    """The same request, its open fields filled."""
    given = request.model_fields_set
    known = type(request).model_fields
    update = {
        name: value
        for name in SAMPLING_DEFAULTS
        if name in known and name not in given and (value := getattr(defaults, name)) is not None
    }
    return request.model_copy(update=update) if update else request
