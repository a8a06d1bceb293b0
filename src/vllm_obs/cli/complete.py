"""`vllm-obs complete`: texts completed by a running server, in the terminal."""

from contextlib import closing
from typing import Any

from vllm_obs.cli.chat_options import Aliases, sampling_of, server_of, talk_parser, tell_server
from vllm_obs.cli.chat_screen import Screen
from vllm_obs.cli.chat_server import ChatServer, ServerError

EXIT_FAILED = 1

_USAGE = "vllm-obs complete [-q TEXT] [--url URL] [--model NAME] [--max-tokens NUMBER] [FLAGS]"
_DESCRIPTION = """\
Let a running server complete texts. Each line is one, by itself.

/exit or Ctrl-D ends, Ctrl-C ends a completion."""
_OWN = (Aliases(("-q", "--quick"), "quick", "TEXT", "Complete this, and end."),)


def main(argv: list[str]) -> int:
    """Complete until told to stop; 1 when there is no server, or a text that was not typed got no completion."""
    options = talk_parser("complete", _USAGE, _DESCRIPTION, _OWN).parse(argv)
    screen = Screen()
    try:
        server = server_of(options)
        tell_server(options, server, screen)
        model = options.get("model") or server.first_model()
    except ServerError as error:
        screen.complain(str(error))
        return EXIT_FAILED
    fields = {"model": model, **sampling_of(options)}
    if "quick" in options:
        return 0 if complete(server, {**fields, "prompt": options["quick"]}, screen) else EXIT_FAILED
    if screen.is_terminal:
        screen.write(f"{model} at {server.url}; /exit ends\n")
    return _complete_lines(server, fields, screen)


def _complete_lines(server: ChatServer, fields: dict[str, Any], screen: Screen) -> int:
    num_failed = 0
    while not screen.is_closed and (text := screen.ask("> ")) is not None:
        if text.strip() == "/exit":
            break
        if text:
            num_failed += not complete(server, {**fields, "prompt": text}, screen)
    return EXIT_FAILED if num_failed and not screen.is_terminal else 0


def complete(server: ChatServer, body: dict[str, Any], screen: Screen) -> bool:
    """Show the completion as it comes; whether it came whole. Ctrl-C ends it."""
    is_whole = False
    try:
        with closing(server.stream("/completions", body)) as events:
            for event in events:
                screen.write("".join(choice.get("text") or "" for choice in event.get("choices") or ()))
                if screen.is_closed:
                    break
        is_whole = True
    except ServerError as error:
        screen.complain(str(error))
    except KeyboardInterrupt:
        screen.stop()
    screen.write("\n" if is_whole or screen.is_terminal else "")
    return is_whole
