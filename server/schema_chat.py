"""The body of /v1/chat/completions."""

from typing import ClassVar

from pydantic import model_validator

from vllm_obs.engine.frontend.content_form import joined
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.schema_base import NumTokens, Whole
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.schema_template import TemplateRequest
from vllm_obs.server.schema_tools import AllowedToolChoice, NamedToolChoice
from vllm_obs.server.tool_calls.registry import MakeParser
from vllm_obs.server.tool_use import ToolUse, tool_use
from vllm_obs.server.validation import invalid


class ChatCompletionRequest(SamplingRequest, TemplateRequest):
    """A conversation in, the next message out."""

    operation: ClassVar[str] = "chat"

    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    echo: bool = False
    return_prompt_text: bool = False

    @model_validator(mode="after")
    def _check_fields_together(self) -> "ChatCompletionRequest":
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed together with logprobs=true")
        self.check_stream_fields()
        return self

    def echoed(self) -> str:
        """What its answers begin with: with `echo` the last message's text, if the answer is the same role's."""
        last = self.messages[-1]
        is_same = last.role == "assistant" or not self.add_generation_prompt
        return joined(last.content or "") if self.echo and is_same else ""

    def object_name(self) -> str:
        """What the reply calls itself."""
        return "chat.completion.chunk" if self.stream else "chat.completion"

    def _choice(self) -> NamedToolChoice | str | None:
        choice = self.tool_choice
        return choice.allowed_tools.mode if isinstance(choice, AllowedToolChoice) else choice

    def tool_use(self, make_parser: MakeParser | None) -> ToolUse:
        """What its tools come to with the server's parser. ApiError 400 where they or another form do not fit."""
        use = tool_use(self.offered_tools(), self._choice(), not self.parallel_tool_calls, make_parser)
        if use.schema is not None and self.asked_form():
            raise invalid(self.asked_form(), "excludes a tool_choice that leaves nothing but calls")
        return use

    def engine_names(self) -> dict[str, str]:
        """By what the engine calls a field, what it was sent as."""
        names = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return names if self.top_logprobs is None else {**names, "logprobs": "top_logprobs"}

    def params(self) -> SamplingParams:
        """The engine's parameters; max_completion_tokens wins over its older name."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.sampling_params(
            max_tokens, (self.top_logprobs or 0) if self.logprobs else None, self.prompt_logprobs
        )
