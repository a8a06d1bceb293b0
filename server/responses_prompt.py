"""From a request's items to its prompt; where it may be truncated, the oldest turns give way."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.chat_template import EncodedChat
from vllm_obs.server.client_names import said_of
from vllm_obs.server.errors import ApiError
from vllm_obs.server.routes_chat import encode_messages
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.state import ApiServer

OWN_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}
"""What chats call a field, and what it is called here."""


@contextmanager
def said_of_own_fields() -> Iterator[None]:
    """What a chat, or the engine, has against a field is said of the field that it was made from."""
    try:
        yield
    except (ApiError, RequestError) as error:
        raise said_of(error, OWN_NAMES) from error


async def encode(api: ApiServer, request: ResponsesRequest, chat: ChatCompletionRequest) -> EncodedChat:
    """The token ids of the conversation, or of its latest turns where truncation is auto. ApiError as a chat's."""
    if request.truncation == "disabled":
        return await encode_messages(api, chat)
    room = api.engine.facts.max_model_len - (request.max_output_tokens or 1)
    whole = await _encode_within(api, chat, room)
    return whole if whole is not None else await _latest_turns(api, chat, room)


async def _latest_turns(api: ApiServer, chat: ChatCompletionRequest, room: int) -> EncodedChat:
    """As many turns as fit: the first one that does is searched for by halves."""
    starts = _turn_starts(chat)
    longest: EncodedChat | None = None
    while starts:
        middle = len(starts) // 2
        fitting = await _encode_within(api, _from(chat, starts[middle]), room)
        if fitting is None:
            starts = starts[middle + 1 :]
        else:
            longest, starts = fitting, starts[:middle]
    return longest or await encode_messages(api, chat)


async def _encode_within(api: ApiServer, chat: ChatCompletionRequest, room: int) -> EncodedChat | None:
    """The token ids, None where they are more than `room`."""
    try:
        encoded = await encode_messages(api, chat)
    except ApiError as error:
        if error.reason != "context_length_exceeded":
            raise
        return None
    return encoded if len(encoded.token_ids) <= room else None


def _num_system(chat: ChatCompletionRequest) -> int:
    """How many messages at the beginning are instructions, which stay."""
    roles = [message.role in ("system", "developer") for message in chat.messages]
    return roles.index(False) if False in roles else len(roles)


def _turn_starts(chat: ChatCompletionRequest) -> list[int]:
    """Where a user begins a turn, but for the first message of all."""
    first = _num_system(chat) + 1
    return [place for place, message in enumerate(chat.messages) if place >= first and message.role == "user"]


def _from(chat: ChatCompletionRequest, start: int) -> ChatCompletionRequest:
    return chat.model_copy(update={"messages": chat.messages[: _num_system(chat)] + chat.messages[start:]})
