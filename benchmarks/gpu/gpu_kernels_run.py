"""The parts that need nothing but kernels, in this process: ceilings, checks, speeds; a line of JSON each.

It is run by `gpu_kernels.py` as `python gpu_kernels_run.py JSON`. An item that stands still ends the process, as
does an error after which the device does nothing more for it: another process then goes on behind that item.
"""

import faulthandler
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from gpu_card import Card

ITEM_SECONDS, DRY_ITEM_SECONDS = 45.0, 180.0
"""With compilation. A kernel that never ends is left behind after that."""
EXIT_LOST = 3

Item = TypeVar("Item")


class Order(NamedTuple):
    """What to run until which deadlines (monotonic s), in order; `done` are items of each part that were begun."""

    is_dry: bool
    deadlines: dict[str, float]
    done: dict[str, int]
    ceilings: dict[str, float] | None


def main() -> None:
    """Print a line for each item that begins, and for what came of it."""
    order = Order(**json.loads(sys.argv[1]))
    sys.path.append(str(Path(__file__).parents[2] / "tests/support"))
    if order.is_dry:
        os.environ["TRITON_INTERPRET"] = "1"
    # Only now: it is decided whether kernels are interpreted.
    from gpu_card import Card, measure_ceilings
    from gpu_ceilings import UNKNOWN, Ceilings
    from gpu_checks import checks_of
    from gpu_speeds import speeds_of

    card = Card.dry() if order.is_dry else Card.current()
    say({"about": card.facts()})
    run, ceilings = Run(card, order), Ceilings(**order.ceilings) if order.ceilings else UNKNOWN

    def measured() -> dict[str, Any]:
        nonlocal ceilings
        ceilings = measure_ceilings(card)
        return ceilings.plain()

    run.part("ceilings", [None], lambda _: "a copy and a product", lambda _: measured())
    run.part("checks", checks_of(card), lambda check: check.name, lambda check: check.row())
    run.part(
        "speeds",
        speeds_of(card),
        lambda speed: f"{speed.model}, {speed.workload.name}",
        lambda speed: speed.row(card, ceilings),
    )


class Run(NamedTuple):
    """The parts of an order on a card."""

    card: "Card"
    order: Order

    def part(
        self,
        part: str,
        items: Iterable[Item],
        name_of: Callable[[Item], str],
        row_of: Callable[[Item], dict[str, Any]],
    ) -> None:
        """Each item that is not done yet and that there is time for."""
        deadline = self.order.deadlines.get(part)
        if deadline is None:
            return
        num_done = self.order.done.get(part, 0)
        for number, item in enumerate(items):
            if number < num_done:
                continue
            name = name_of(item)
            if time.monotonic() < deadline:
                self._item(part, name, lambda item=item: row_of(item))  # type: ignore[misc]
            else:
                say({"part": part, "cut": name})

    def _item(self, part: str, name: str, make_row: Callable[[], dict[str, Any]]) -> None:
        say({"part": part, "begun": name})
        faulthandler.dump_traceback_later(DRY_ITEM_SECONDS if self.card.is_dry else ITEM_SECONDS, exit=True)
        try:
            say({"part": part, "row": make_row()})
        except Exception as error:  # the others may succeed, and a borrowed GPU is gone soon
            say({"part": part, "failed": f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"})
        if self.card.is_lost():
            print(f"the device is lost to this process after {name}", file=sys.stderr)
            os._exit(EXIT_LOST)  # cleaning up would use the device
        faulthandler.cancel_dump_traceback_later()


def say(line: dict[str, Any]) -> None:
    """One object a line; what is no number of JSON's is null."""
    plain = {key: _finite(value) for key, value in line.items()}
    print(json.dumps(plain), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
