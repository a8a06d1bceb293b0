"""Every kernel in every configuration, compiled for each card, and what it takes: the table of docs/kernels.md."""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.kernels.triton.ahead_of_time import CodeFacts, compile_for
from vllm_obs.engine.kernels.triton.configs import CAPABILITIES, configs_for
from vllm_obs.engine.kernels.triton.launch import LaunchConfig
from vllm_obs.engine.kernels.triton.specimens import specimens

BEGIN, END = "<!-- table of kernels -->", "<!-- end of the table -->"


class Row(NamedTuple):
    """One kernel on one card."""

    name: str
    capability: int
    config: LaunchConfig
    facts: CodeFacts


def rows(*, is_quick: bool) -> Iterator[Row]:
    """All of them; or, quick, a launch of each kernel: of attention on each card, of the others on one in turn."""
    for turn, capability in enumerate(CAPABILITIES):
        seen: list[str] = []
        for name, launch in specimens(configs_for(capability), capability):
            kernel = name.split(" ")[0].rstrip(",")
            is_first = kernel not in seen
            seen += [kernel] if is_first else []
            is_turn = len(seen) == 1 or len(seen) % len(CAPABILITIES) == turn
            if not is_quick or (is_first and is_turn):
                yield Row(name, capability, launch.config, compile_for(launch, capability))


def markdown(found: list[Row]) -> str:
    """A table, one line a kernel, three figures a card."""
    cards = sorted({row.capability for row in found})
    head = "| kernel | " + " | ".join(f"sm_{card}" for card in cards) + " |"
    names = dict.fromkeys(row.name for row in found)
    by_place = {(row.name, row.capability): row for row in found}
    lines = [f"| {name} | " + " | ".join(_cell(by_place[name, card]) for card in cards) + " |" for name in names]
    return "\n".join([head, "|---" * (len(cards) + 1) + "|", *lines])


def _cell(row: Row) -> str:
    sizes = "×".join(str(size) for size in row.config.sizes.values())
    cut = f"{sizes}, " if sizes else ""
    facts = row.facts
    local = f", {facts.local_bytes} B local" if facts.local_bytes else ""
    return f"{cut}{row.config.num_warps} w: {facts.num_registers} r, {facts.shared_bytes} B{local}"


def write_into(document: Path, table: str) -> None:
    """Put the table between the document's two marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    document.write_text(pattern.sub(lambda _: f"{BEGIN}\n{table}\n{END}", document.read_text()))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a launch of each kernel only")
    parser.add_argument("--json", action="store_true", help="one object a kernel and card")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="put the table into this document")
    arguments = parser.parse_args()
    found = list(rows(is_quick=arguments.quick))
    if arguments.write is not None:
        write_into(arguments.write, markdown(found))
    elif arguments.json:
        print(json.dumps([_plain(row) for row in found]))
    else:
        print(markdown(found))


def _plain(row: Row) -> dict[str, Any]:
    return {"name": row.name, "capability": row.capability, **asdict(row.config), **asdict(row.facts)}


if __name__ == "__main__":
    main()
