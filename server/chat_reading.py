"""ChatReading: how the choices of one chat are read, by its request and the server's parsers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.message_reader import MessageReader
from vllm_obs.server.reasoning import PARSERS, MakeThoughts, PromptEnd
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.tool_use import NO_TOOLS, ToolUse

NUM_END_TOKENS = 16
"""So many of a prompt's last tokens hold a mark and the blanks around it."""
MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>")
"""What parsers look for; some models have tokens of their own for it, which are special."""


@dataclass(frozen=True)
class ChatReading:
    """`make_thoughts` makes what tells reasoning apart, None where there is none to be told apart."""

    tools: ToolUse = NO_TOOLS
    make_thoughts: MakeThoughts | None = None
    shows_reasoning: bool = True
    prompt_end: PromptEnd = PromptEnd.PLAIN

    @classmethod
    def of(cls, api: ApiServer, request: ChatCompletionRequest) -> "ChatReading":
        """ApiError 400 where the request's tools do not fit."""
        tools = request.tool_use(api.make_tool_parser)
        # A grammar holds from the first character on and leaves no room for a thought.
        name = "" if tools.schema is not None or request.asked_form() else api.server.reasoning_parser
        return cls(tools, PARSERS[name] if name else None, request.include_reasoning)

    def after(self, api: ApiServer, prompt: Sequence[int]) -> "ChatReading":
        """The same for answers to a prompt of these tokens: its template may have begun a thought, or ended it."""
        if self.make_thoughts is None:
            return self
        end = api.engine.tokenizer.decode(list(prompt[-NUM_END_TOKENS:]), skip_special_tokens=False)
        return replace(self, prompt_end=PromptEnd.of(end))

    @property
    def is_plain(self) -> bool:
        """Whether a choice's text is its content."""
        return self.tools.make_reader is None and self.make_thoughts is None

    def make_reader(self) -> MessageReader:
        """What reads one choice."""
        thoughts = self.make_thoughts(self.prompt_end) if self.make_thoughts is not None else None
        tools = self.tools.make_reader() if self.tools.make_reader is not None else None
        return MessageReader(thoughts, tools)

    def params(self, request: ChatCompletionRequest, api: ApiServer) -> SamplingParams:
        """The engine's parameters, with the grammar of forced calls and the text of what parsers look for."""
        params = request.params()
        if (grammar := self.tools.grammar()) is not None:
            params = replace(params, structured_outputs=grammar)
        skips_special = self.skips_special(params.skip_special_tokens, api.engine.tokenizer)
        return replace(params, skip_special_tokens=skips_special)

    def skips_special(self, is_asked: bool, tokenizer: Tokenizer) -> bool:
        """Whether special tokens are left out of the text: not where a parser looks for one."""
        is_looked_for = not self.is_plain and any(map(tokenizer.special_pattern.fullmatch, MARKERS))
        return is_asked and not is_looked_for

    def finish_reason(self, reason: str | None, has_calls: bool) -> str | None:
        """How a choice ended: a stop after calls is tool_calls, but for the one that was named."""
        return "tool_calls" if reason == "stop" and has_calls and self.tools.ends_as_tool_calls else reason
