"""`vllm-obs chat`: a conversation with a running server in the terminal."""

from contextlib import closing
from typing import Any

from vllm_obs.cli.chat_options import Aliases, sampling_of, server_of, talk_parser, tell_server
from vllm_obs.cli.chat_screen import Screen
from vllm_obs.cli.chat_server import ChatServer, ServerError

EXIT_FAILED = 1

_USAGE = "vllm-obs chat [-q TEXT] [--system TEXT] [--url URL] [--model NAME] [FLAGS]"
_DESCRIPTION = """\
Talk to a running server. Each line is a message; what was said before goes along.

/clear forgets what was said, /exit or Ctrl-D ends, Ctrl-C ends a reply."""
_OWN = (
    Aliases(("-q", "--quick"), "quick", "TEXT", "Say this, print the reply, and end."),
    Aliases(("--system", "--system-prompt"), "system", "TEXT", "What the model is told before all else."),
)


def main(argv: list[str]) -> int:
    """Talk until told to stop; 1 when there is no server, or a message that was not typed got no reply."""
    options = talk_parser("chat", _USAGE, _DESCRIPTION, _OWN).parse(argv)
    screen = Screen()
    try:
        server = server_of(options)
        tell_server(options, server, screen)
        model = options.get("model") or server.first_model()
    except ServerError as error:
        screen.complain(str(error))
        return EXIT_FAILED
    conversation = Conversation(server, {"model": model, **sampling_of(options)}, options.get("system", ""))
    if "quick" in options:
        return 0 if conversation.say(options["quick"], screen) else EXIT_FAILED
    if screen.is_terminal:
        screen.write(f"{model} at {server.url}; /clear forgets, /exit ends\n")
    return _talk(conversation, screen)


def _talk(conversation: "Conversation", screen: Screen) -> int:
    num_failed = 0
    while not screen.is_closed and (text := screen.ask("> ")) is not None:
        match text.strip():
            case "":
                continue
            case "/exit":
                break
            case "/clear":
                conversation.clear()
            case _:
                num_failed += not conversation.say(text, screen)
    return EXIT_FAILED if num_failed and not screen.is_terminal else 0


class Conversation:
    """What was said so far. It grows to the model's context: a message that the server refuses is not kept."""

    def __init__(self, server: ChatServer, fields: dict[str, Any], system: str = "") -> None:
        self.messages: list[dict[str, str]] = []
        self._server = server
        self._fields = fields
        self._opening = [{"role": "system", "content": system}] if system else []

    def clear(self) -> None:
        """Forget what was said; the system's words stay."""
        self.messages.clear()

    def say(self, text: str, screen: Screen) -> bool:
        """Say something and show the reply as it comes; whether it came whole. What came before Ctrl-C is kept."""
        message = {"role": "user", "content": text}
        body = {**self._fields, "messages": [*self._opening, *self.messages, message]}
        reply, is_whole = "", False
        try:
            with closing(self._server.stream("/chat/completions", body)) as events:
                for event in events:
                    reply += _show(event, screen)
                    if screen.is_closed:
                        break
            is_whole = True
        except ServerError as error:
            screen.write("\n" if reply else "")
            screen.complain(str(error))
            return False
        except KeyboardInterrupt:
            screen.stop()
        screen.write("\n")
        self.messages += [message, {"role": "assistant", "content": reply}]
        return is_whole


def _show(event: dict[str, Any], screen: Screen) -> str:
    """Show what an event brings; its part of the reply."""
    content = ""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        screen.write_thought(delta.get("reasoning") or delta.get("reasoning_content") or "")
        content += delta.get("content") or ""
    screen.write(content)
    return content
