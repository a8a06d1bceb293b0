"""Flags that this command does not have: misspelt ones, and those only vLLM has."""

import json
from collections.abc import Sequence
from pathlib import Path

from vllm_obs.cli.parser import nearest_option
from vllm_obs.engine.errors import ConfigError

VLLM_FLAGS = Path(__file__).with_name("vllm_flags.json")
"""Every flag of `vllm serve` with what comes nearest to it here, and its short names."""


def long_names(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words with vLLM's short names (-tp) of flags that are here written out."""
    short = json.loads(VLLM_FLAGS.read_text("utf-8"))["short"] if any(map(_is_short, argv)) else {}
    return [short[word] if short.get(word) in options else word for word in argv]


def _is_short(word: str) -> bool:
    return word.startswith("-") and word[1:2].isalpha()


def refuse_unknown(argv: Sequence[str], options: Sequence[str]) -> None:
    """Raise ConfigError for the first flag that is not among the options, with what vLLM knows about it."""
    if flag := _first_unknown(argv, options):
        raise ConfigError(_vllm_refusal(flag, options) or _misspelling(flag, options))


def refuse_misspelt(argv: Sequence[str], options: Sequence[str]) -> None:
    """Raise ConfigError for the first flag that is not among the options."""
    if flag := _first_unknown(argv, options):
        raise ConfigError(_misspelling(flag, options))


def _first_unknown(argv: Sequence[str], options: Sequence[str]) -> str:
    for word in argv:
        if word == "--":
            break
        flag = _flag_in(word)
        if flag and flag not in options:
            return flag
    return ""


def _flag_in(word: str) -> str:
    """The flag a word is, without its value and with dashes; empty for a value such as -1."""
    if not word.startswith("-") or word == "-" or word[1:2].isdigit() or word[1:2] == ".":
        return ""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _vllm_refusal(flag: str, options: Sequence[str]) -> str:
    known = json.loads(VLLM_FLAGS.read_text("utf-8"))
    full = known["short"].get(flag, flag)
    for name in (full, "--" + full.removeprefix("--no-")):
        if name in known["nearest"] and name not in options:
            near = known["nearest"][name] or "nothing"
            return f"{flag} is a flag of vLLM that vllm-obs does not have; what comes nearest: {near}"
    return ""


def _misspelling(flag: str, options: Sequence[str]) -> str:
    near = nearest_option(flag, options)
    return f"there is no flag {flag:.64}" + (f" (nearest: {near})" if near else "") + "; see --help"
