"""What successful replies look like: said in the OpenAPI document, and what tests hold the replies to."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Nothing = Annotated[None, Field(description="Always null here.")]
FinishReason = Literal["stop", "length", "tool_calls"]


class Reply(BaseModel):
    """A reply, or a part of one, with no field but those named."""

    model_config = ConfigDict(extra="forbid")


class OpenReply(BaseModel):
    """A reply with more fields than those named, as another API defines them."""

    model_config = ConfigDict(extra="allow")


class PromptTokensDetails(Reply):
    """With --enable-prompt-tokens-details."""

    cached_tokens: int


class CompletionTokensDetails(Reply):
    """With --reasoning-parser."""

    reasoning_tokens: int


class UsageReply(Reply):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class PromptTokenReply(Reply):
    """One candidate for a token of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptTokenReply] | None] | None


class WholeReply(Reply):
    """What the replies of both completion APIs share; `metrics` with --enable-per-request-metrics.

    Of what can be null, --omit-empty-fields leaves out what is, but for `content`, `refusal` and `logprobs`.
    """

    id: str
    created: int
    model: str
    service_tier: Nothing = None
    system_fingerprint: str
    usage: UsageReply
    kv_transfer_params: Nothing = None
    ec_transfer_params: Nothing = None
    metrics: dict[str, Any] | None = None


class CompletionLogprobs(Reply):
    """Log-probabilities of text, one entry a token in each list."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Reply):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs = None
    prompt_token_ids: list[int] | None = None
    routed_experts: Nothing = None


class CompletionReply(WholeReply):
    """The reply of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatToken(Reply):
    """A token, and its bytes, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenWithTop(ChatToken):
    """The token that was chosen, and the likeliest ones."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(Reply):
    """Log-probabilities of a message, one entry a token."""

    content: list[ChatTokenWithTop]


class CalledFunction(Reply):
    """What is called; `arguments` is JSON as text."""

    name: str
    arguments: str


class CallReply(Reply):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class MessageReply(Reply):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: Nothing
    annotations: Nothing = None
    audio: Nothing = None
    function_call: Nothing = None
    tool_calls: list[CallReply] = []
    reasoning: str | None = None


class ChatChoice(Reply):
    """One answer."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: Nothing = None


class ChatCompletionReply(WholeReply):
    """The reply of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs = None
    prompt_token_ids: list[int] | None = None
    prompt_text: Nothing = None


class RenderedPrompt(Reply):
    """A prompt as it would run: its ids and their text, and how it would be sampled."""

    request_id: str
    model: str
    prompt: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool
    priority: int
    cache_salt: str | None


class TokenizeReply(Reply):
    """The reply of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(Reply):
    """The reply of /detokenize."""

    prompt: str


class ModelCard(Reply):
    """A name this server answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: Nothing
    max_model_len: int
    permission: list[dict[str, Any]]


class ModelList(Reply):
    """All names."""

    object: Literal["list"]
    data: list[ModelCard]
