"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import MAX_LABEL_CHARS, NumTokens, StrictModel, Strings, Text, Whole
from vllm_obs.server.schema_chat_messages import check_messages
from vllm_obs.server.schema_messages_blocks import MAX_BLOCKS, Blocks, Texts
from vllm_obs.server.schema_messages_tools import (
    JsonOutputFormat,
    MessageToolChoice,
    MessageTools,
    Metadata,
    OutputConfig,
    Thinking,
)
from vllm_obs.server.schema_template import TemplateKwargs
from vllm_obs.server.validation import invalid

KINDS_OF_ROLE = {
    "user": {"text", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
    "system": {"text"},
}


class InputMessage(StrictModel):
    """One message of a conversation; only an assistant's may be empty."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _check_content_fits_role(self) -> "InputMessage":
        if not self.content and self.role != "assistant":
            raise PydanticCustomError(
                "content", "content should not be empty for the role {role}", {"role": self.role}
            )
        for block in self.content:
            if block.type not in KINDS_OF_ROLE[self.role]:
                raise PydanticCustomError(
                    "content",
                    "a {kind} block should not stand in a message of role {role}",
                    {"kind": block.type, "role": self.role},
                )
        return self


class ConversationRequest(StrictModel):
    """The fields that make a prompt, and those that say what may follow it. A null field is a field left out."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARS)]
    messages: Annotated[list[InputMessage], Field(fail_fast=True), BeforeValidator(check_messages)] = Field(
        default=[], validate_default=True
    )
    system: Texts = Field(default_factory=list)
    tools: MessageTools = Field(default_factory=list)
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = None
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    container: Any = None
    mcp_servers: Any = None

    @model_validator(mode="after")
    def _check_fields_together(self) -> "ConversationRequest":
        for name in ("container", "mcp_servers"):
            if getattr(self, name):
                raise invalid(name, "is not supported by this server", "unsupported")
        num_blocks = sum(len(message.content) for message in self.messages)
        if num_blocks > MAX_BLOCKS:
            raise invalid("messages", f"should hold at most {MAX_BLOCKS} blocks in all, got {num_blocks}")
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not self.tools:
            raise invalid("tool_choice", f"{choice.type} needs tools")
        if self.output_format is not None and self.output_config is not None and self.output_config.format:
            raise invalid(
                "output_format", "excludes output_config.format: only one of them can say what it is like"
            )
        return self

    @property
    def form(self) -> JsonOutputFormat | None:
        """What the reply's text must match, by the field's new name or its old one."""
        return (self.output_config and self.output_config.format) or self.output_format


class MessagesRequest(ConversationRequest):
    """A conversation in, the next message out."""

    max_tokens: NumTokens
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    top_p: float = 1.0
    top_k: Whole = 0
    stop_sequences: Strings = Field(default_factory=list)
    stream: bool = False
    metadata: Metadata | None = None
    service_tier: Text | None = None


class CountTokensRequest(ConversationRequest):
    """A conversation whose tokens are to be counted."""
