"""From a conversation in Anthropic's form to the chat that this server answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_chat_messages import ChatMessage
from vllm_obs.server.schema_messages import ConversationRequest, MessagesRequest
from vllm_obs.server.schema_messages_blocks import Block
from vllm_obs.server.schema_messages_tools import MessageTool, MessageToolChoice
from vllm_obs.server.schema_structured import JsonSchemaFormat, ResponseFormat
from vllm_obs.server.schema_tools import (
    FunctionCall,
    FunctionChoice,
    FunctionDefinition,
    NamedToolChoice,
    ToolCall,
    ToolDefinition,
)
from vllm_obs.server.validation import invalid

Role = Literal["system", "user", "assistant", "tool"]

PLAIN_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERROR = "Error: "
"""What the result of a tool that failed begins with: chat templates have no other place for it."""


def as_chat(request: ConversationRequest) -> ChatCompletionRequest:
    """The chat that asks for the same. ApiError 400 where the conversation cannot be gone on with.

    Its parts have been checked as parts of the request, so they are not checked again.
    """
    messages, is_prefilled = chat_messages(request)
    sampling = _sampling(request) if isinstance(request, MessagesRequest) else {}
    thinking = request.thinking
    thinks = {} if thinking is None else {"enable_thinking": thinking.is_on}
    effort = request.output_config and request.output_config.effort
    told = {} if effort is None else {"reasoning_effort": effort}
    return ChatCompletionRequest.model_construct(
        model=request.model,
        messages=messages,
        continue_final_message=is_prefilled,
        chat_template_kwargs={**thinks, **request.chat_template_kwargs, **told},
        include_reasoning=thinking is not None and thinking.is_shown,
        response_format=_form(request),
        **_tools(request.tools, request.tool_choice),
        **sampling,
    )


def chat_messages(request: ConversationRequest) -> tuple[list[ChatMessage], bool]:
    """The messages, and whether the last one is the beginning of the reply."""
    turns = turns_of(request)
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant":
        return [turn.message() for turn in turns], False
    if last.calls:
        raise invalid("messages", "the last message calls tools: what they gave back should follow")
    if not any(last.texts):
        turns.pop()
    if not turns:
        raise invalid("messages", "should hold more than an empty message", "empty_prompt")
    return [turn.message() for turn in turns], turns[-1] is last


@dataclass
class Turn:
    """What one role says, put together from blocks."""

    role: Role
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    tool_use_id: str | None = None

    def message(self) -> ChatMessage:
        """The turn as a message of a chat."""
        return ChatMessage.model_construct(
            role=self.role,
            content="\n".join(self.texts),
            tool_call_id=self.tool_use_id,
            tool_calls=self.calls or None,
            reasoning="\n".join(self.thoughts) or None,
        )

    def add(self, block: Block) -> None:
        """The next block; thoughts that only their maker can read are left out."""
        if block.type == "text":
            self.texts.append(block.text or "")
        elif block.type == "tool_use":
            self.calls.append(_call(block))
        elif block.type == "thinking":
            self.thoughts.append(block.thinking or "")


def turns_of(request: ConversationRequest) -> list[Turn]:
    """Messages of one role in a row are one turn; the result of a tool is a turn of its own."""
    turns: list[Turn] = []
    if request.system:
        turns.append(Turn("system", [block.text for block in request.system]))
    for message in request.messages:
        if not message.content:
            _turn_of(turns, message.role)
        for block in message.content:
            if block.type == "tool_result":
                turns.append(_result(block))
            else:
                _turn_of(turns, message.role).add(block)
    return turns


def _turn_of(turns: list[Turn], role: Role) -> Turn:
    """The last turn where it is this role's, else a new one."""
    if not turns or turns[-1].role != role:
        turns.append(Turn(role))
    return turns[-1]


def _result(block: Block) -> Turn:
    text = (ERROR if block.is_error else "") + "\n".join(part.text for part in block.content)
    return Turn("tool", [text], tool_use_id=block.tool_use_id)


def _call(block: Block) -> ToolCall:
    function = FunctionCall.model_construct(name=block.name or "", arguments=orjson.dumps(block.input).decode())
    return ToolCall.model_construct(id=block.id, function=function)


def _tools(tools: Iterable[MessageTool], choice: MessageToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {"tools": [_definition(tool) for tool in tools]}
    named = NamedToolChoice.model_construct(function=FunctionChoice.model_construct(name=choice.name or ""))
    return {
        "tools": [_definition(tool) for tool in tools],
        "tool_choice": PLAIN_CHOICES.get(choice.type, named),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


def _definition(tool: MessageTool) -> ToolDefinition:
    function = FunctionDefinition.model_construct(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return ToolDefinition.model_construct(function=function)


def _form(request: ConversationRequest) -> ResponseFormat | None:
    if request.form is None:
        return None
    schema = JsonSchemaFormat.model_construct(schema_=request.form.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences,
        "stream": request.stream,
        "user": request.metadata.user_id if request.metadata is not None else None,
    }
