"""docs/flags.md, made from the flag tables: `python -m vllm_obs.cli.flag_pages > docs/flags.md`."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from vllm_obs.cli.bench.options import BENCH_FLAGS, BenchOptions
from vllm_obs.cli.parser import shown_default
from vllm_obs.cli.serve import SERVE_FLAGS, flag_defaults
from vllm_obs.engine.flags import Flag

_INTRODUCTION = """\
# Flags

Made by `python -m vllm_obs.cli.flag_pages`; do not edit.

## vllm-obs serve

Names and meanings are vLLM's. A flag of vLLM that is missing here ends the start with one line that says so. Every
flag can also be set by an environment variable (`--max-model-len` by `VLLM_OBS_MAX_MODEL_LEN`, several values with
commas between) or in the YAML file of `--config`. The command line wins over the environment, the environment over
the file. Counts may be written 4k (4,000) or 4K (4,096)."""


def flags_page() -> str:
    """The whole page."""
    bench_defaults = {field.name: field.default for field in fields(BenchOptions)}
    sections = [
        _INTRODUCTION,
        *_tables(SERVE_FLAGS, flag_defaults()),
        "## vllm-obs bench serve",
        *_tables(BENCH_FLAGS, bench_defaults),
    ]
    return "\n\n".join(sections) + "\n"


def _tables(flags: Iterable[Flag], defaults: Mapping[str, Any]) -> list[str]:
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        if flag.is_hidden:
            continue
        groups.setdefault(flag.group, []).append(flag)
    return [_table(group, members, defaults) for group, members in groups.items()]


def _table(group: str, flags: Iterable[Flag], defaults: Mapping[str, Any]) -> str:
    rows = [f"| {_cell(flag)} | {_default(flag, defaults)} | {flag.help} |" for flag in flags]
    return "\n".join([f"### {group}", "", "| flag | default | meaning |", "| --- | --- | --- |", *rows])


def _cell(flag: Flag) -> str:
    if flag.kind == "pair":
        return f"`--[no-]{flag.option.removeprefix('--')}`"
    if flag.is_boolean:
        return f"`{flag.option}`"
    placeholder = " \\| ".join(flag.choices) if flag.choices else flag.placeholder
    return f"`{flag.option}` {placeholder}" + (" …" if flag.kind == "values" else "")


def _default(flag: Flag, defaults: Mapping[str, Any]) -> str:
    return flag.default_text or shown_default(flag, defaults.get(flag.name))


if __name__ == "__main__":
    print(flags_page(), end="")
