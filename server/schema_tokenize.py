"""The bodies of /tokenize and /detokenize."""

from typing import Annotated

from pydantic import Field

from vllm_obs.server.schema_base import StrictModel
from vllm_obs.server.schema_sampling import WHOLE_IDS
from vllm_obs.server.schema_template import TemplateRequest

MAX_TOKENS = 1_000_000

ModelName = Annotated[str, Field(min_length=1, max_length=1024)]


class AnyTokenizeRequest(StrictModel):
    """What both kinds share."""

    model: ModelName | None = None
    return_token_strs: bool = False


class TokenizeRequest(AnyTokenizeRequest):
    """Text to tokenize: `add_special_tokens` as for a completion."""

    prompt: str
    add_special_tokens: bool = True


class TokenizeChatRequest(AnyTokenizeRequest, TemplateRequest):
    """Messages to tokenize as a chat completion would."""


class DetokenizeRequest(StrictModel):
    """Token ids to make text of; special tokens are spelled out."""

    model: ModelName | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True), WHOLE_IDS]
