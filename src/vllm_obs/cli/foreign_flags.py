"""Flags that this command does not have: misspelt ones, and those only vLLM has."""

import json
from collections.abc import Sequence
from pathlib import Path

from vllm_obs.cli.parser import nearest_option
from vllm_obs.engine.errors import ConfigError

VLLM_FLAGS = Path(__file__).with_name("vllm_flags.json")
"""Every flag of `vllm serve` with what comes nearest to it here, and its short names."""


def refuse_unknown(argv: Sequence[str], options: Sequence[str]) -> None:
    """Raise ConfigError for the first word that looks like a flag and is none of ours."""
    for word in argv:
        if word == "--":
            return
        flag = _flag_in(word)
        if flag and flag not in options:
            raise ConfigError(_refusal(flag, options))


def _flag_in(word: str) -> str:
    """The flag a word is, without its value and with dashes; empty for a value such as -1."""
    if not word.startswith("-") or word == "-" or word[1:2].isdigit() or word[1:2] == ".":
        return ""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _refusal(flag: str, options: Sequence[str]) -> str:
    known = json.loads(VLLM_FLAGS.read_text("utf-8"))
    full = known["short"].get(flag, flag)
    positive = "--" + full.removeprefix("--no-") if full.startswith("--no-") else full
    if full in options:
        return f"there is no flag {flag}; it is {full} here"
    for name in (full, positive):
        if name in known["nearest"] and name not in options:
            near = known["nearest"][name] or "nothing"
            return f"{flag} is a flag of vLLM that vllm-obs does not have; what comes nearest: {near}"
    near = nearest_option(full, options)
    return f"there is no flag {flag:.64}" + (f" (nearest: {near})" if near else "") + "; see --help"
