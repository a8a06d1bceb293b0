"""Messages to a prompt by the model's chat template, in a sandbox."""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.errors import ConfigError, RequestError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.frontend.content_form import ContentForm, joined_text, natural_form
from vllm_obs.engine.frontend.tokenizer import Tokenizer

Message = dict[str, Any]

_MARKS = ("\ue0f7", "\uf0a3", "\uf4d1", "\U000f7c31", "\U0010a4b7")
"""Private-use characters of which one that a request does not hold breaks up its special tokens."""


class RenderedChat(NamedTuple):
    """A prompt's text; where `mark` is not empty it keeps apart what only looks like a special token."""

    text: str
    mark: str


class EncodedChat(NamedTuple):
    """A conversation's token ids, and when its text was there (monotonic ns)."""

    token_ids: list[int]
    rendered_at: int


class ChatTemplate:
    """Renders messages whose content is text, or what the template itself takes apart."""

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = None if source is None else _compile(source)
        self.natural_form = ContentForm.TEXT if source is None else natural_form(_environment().parse(source))

    def render(
        self,
        messages: list[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text; with `continue_final_message` it ends with the last message's content.

        RequestError (param messages) when the model has no template or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError(
                "This model has no chat template; start the server with --chat-template.",
                "messages",
                "unsupported",
            )
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other.", "continue_final_message"
            )
        values = {
            "bos_token": self._tokenizer.bos_token,
            "eos_token": self._tokenizer.eos_token,
            **kwargs,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }
        try:
            text = self._template.render(values)
        except Exception as error:  # a template is a program of somebody else: whatever it raises is its refusal
            raise RequestError(f"The chat template refused the messages: {_told(error)}", "messages") from error
        return _cut_after_last_content(text, messages) if continue_final_message else text

    def encode(self, messages: list[Message], /, **options: Any) -> list[int]:
        """The prompt's token ids, with `render`'s options.

        Special tokens that the template writes are special; those spelled in a message, a tool or an option are
        text. For any other content the ids are those of the whole rendered text.
        """
        return self.encode_timed(messages, **options).token_ids

    def encode_timed(self, messages: list[Message], /, **options: Any) -> EncodedChat:
        """`encode`, with the moment between its halves."""
        chat = self.render_marked(messages, **options)
        rendered_at = time.monotonic_ns()
        return EncodedChat(self.tokenize(chat), rendered_at)

    def render_marked(self, messages: list[Message], /, **options: Any) -> RenderedChat:
        """The first half of `encode`: the text, with a mark in each special token that a message spells."""
        pattern = self._tokenizer.special_pattern
        if not any(pattern.search(text) for text in _texts([messages, options])):
            return RenderedChat(self.render(messages, **options), "")
        mark = _unused_mark([messages, options])
        broken, changed = (_break_up(values, pattern, mark) for values in (messages, options))
        return RenderedChat(self.render(broken, **changed), mark)

    def tokenize(self, chat: RenderedChat) -> list[int]:
        """The second half of `encode`."""
        maybe_fault("tokenizer")
        if chat.mark:
            return self._tokenizer.encode_marked(chat.text, chat.mark)
        return self._tokenizer.encode(chat.text, add_special_tokens=False)


def load_chat_template(config: ModelConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The configured template, else the tokenizer's own, else one that refuses. ConfigError if it is broken."""
    chosen = tokenizer.chat_template if config.chat_template is None else config.chat_template
    return ChatTemplate(chosen, tokenizer)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        """The statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def _compile(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template does not compile: {error}") from None


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _told(error: Exception) -> str:
    """What the template itself says; of what went wrong inside it only the kind, as texts may hold anything."""
    return str(error)[:200] if type(error) is jinja2.TemplateError else type(error).__name__


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as it stands: jinja's own filter escapes it for HTML."""
    allowed = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)


def _cut_after_last_content(text: str, messages: list[Message]) -> str:
    """The rendered text up to the end of the last message's content."""
    content = joined_text(messages[-1].get("content")) if messages else None
    if not isinstance(content, str):
        raise RequestError("continue_final_message needs a last message whose content is text.", "messages")
    for ending in (content, content.strip()):
        start = text.rfind(ending)
        if ending and start >= 0:
            return text[: start + len(ending)]
    raise RequestError(
        "The chat template does not keep the last message's content, so it cannot go on.", "messages"
    )


def _texts(values: Any) -> Iterator[str]:
    """Every string in nested lists and dictionaries, keys too."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        yield from _texts(list(values))
        yield from _texts(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _texts(value)


def _unused_mark(values: Any) -> str:
    texts = list(_texts(values))
    for mark in _MARKS:
        if not any(mark in text for text in texts):
            return mark
    raise RequestError("The messages hold special tokens and every mark that would keep them apart.", "messages")


def _break_up(values: Any, pattern: Any, mark: str) -> Any:
    """The same values, each special token in them interrupted by the mark after its first character."""
    if isinstance(values, str):
        return pattern.sub(lambda found: found[0][0] + mark + found[0][1:], values)
    if isinstance(values, dict):
        return {_break_up(key, pattern, mark): _break_up(value, pattern, mark) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_break_up(value, pattern, mark) for value in values]
    return values
