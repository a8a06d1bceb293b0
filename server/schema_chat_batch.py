"""The body of /v1/chat/completions/batch."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_chat_messages import Messages
from vllm_obs.server.validation import invalid


def _check_conversations(value: Any) -> Any:
    if value in (None, []):
        raise PydanticCustomError("empty_prompt", "should hold at least one conversation")
    if type(value) is not list or not all(type(conversation) is list for conversation in value):
        raise PydanticCustomError("messages", "should be a list of lists of messages")
    return value


class BatchChatRequest(ChatCompletionRequest):
    """Conversations in, the next message of each out; whole only."""

    messages: Annotated[list[Messages], Field(fail_fast=True), BeforeValidator(_check_conversations)] = Field(
        default=[], validate_default=True
    )  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_batch(self) -> "BatchChatRequest":
        if self.stream:
            raise invalid("stream", "is not available for several conversations")
        for name in ("prompt_logprobs", "return_prompt_text"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise invalid(name, "is not available for several conversations")
        return self

    def chats(self) -> list[ChatCompletionRequest]:
        """A request for each conversation."""
        fields = {name: getattr(self, name) for name in ChatCompletionRequest.model_fields}
        construct = ChatCompletionRequest.model_construct
        return [construct(self.model_fields_set, **fields | {"messages": messages}) for messages in self.messages]
