"""An argparse parser that is built from flag tables, reads well, and fails with one plain line."""

import argparse
import difflib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import Flag

MAX_HELP_WIDTH = 110


class Parser(argparse.ArgumentParser):
    """No abbreviations, underscores as good as dashes, and ConfigError instead of usage and exit code 2."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog, usage, description, epilog, allow_abbrev=False, add_help=False, formatter_class=HelpFormatter
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        said = message.removeprefix("argument ")
        if said.endswith(": expected one argument"):
            option = said.removesuffix(": expected one argument")
            said = f"{option} needs a value; one that begins with - is written {option.split('/')[-1]}=VALUE"
        raise ConfigError(said)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As typed; an argument that cannot be read is refused in its reader's own words."""
        read = self._registry_get("type", action.type, action.type)
        try:
            return read(arg_string)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise argparse.ArgumentError(action, str(error)) from error

    @property
    def options(self) -> list[str]:
        """Every flag this parser takes."""
        return list(self._option_string_actions)

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The flags that were given, by name; nothing for those that were not."""
        words = [_dashed(word) for word in argv]
        values, rest = self.parse_known_args(words)
        if rest:
            raise ConfigError(f"unexpected argument {rest[0]:.64}")
        return vars(values)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wide enough for a flag and its placeholder on one line."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, MAX_HELP_WIDTH)
        super().__init__(prog, max_help_position=36, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return "--[no-]" + action.option_strings[0].removeprefix("--")
        return super()._format_action_invocation(action)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def nearest_option(name: str, options: Iterable[str]) -> str:
    """The option spelled most like `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1)
    return close[0] if close else ""


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], defaults: Mapping[str, Any]) -> None:
    """Add flags in their groups. Nothing is set for a flag that is not given; `defaults` are for help."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in flags:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        groups[flag.group].add_argument(flag.option, **_argument(flag, defaults.get(flag.name)))


def _argument(flag: Flag, default: Any) -> dict[str, Any]:
    help_text = (flag.help + default_note(flag, default)).replace("%", "%%")
    common = {
        "dest": flag.name,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if flag.is_hidden else help_text,
    }
    if flag.kind == "switch":
        return {**common, "action": "store_true"}
    if flag.kind == "pair":
        return {**common, "action": argparse.BooleanOptionalAction}
    several = {"nargs": "+", "action": "extend"} if flag.kind == "values" else {}
    return {**common, **several, "metavar": flag.placeholder, "type": _reader(flag)}


def default_note(flag: Flag, default: Any) -> str:
    """What help adds about the default, in brackets."""
    text = flag.default_text or shown_default(flag, default)
    return f" [{text}]" if text else ""


def shown_default(flag: Flag, default: Any) -> str:
    """A default as one would type it; empty when there is none."""
    if flag.kind == "switch" or default in (None, "", ()):
        return ""
    if flag.kind == "pair":
        return "on" if default else "off"
    if isinstance(default, float):
        return f"{default:g}"
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _reader(flag: Flag) -> Any:
    def read(text: str) -> Any:
        try:
            return flag.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
