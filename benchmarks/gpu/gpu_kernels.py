"""Ceilings, checks and speeds by way of a process of their own, and of another where that one came to grief."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_budget import Part
from gpu_child import Ended, run_until

SCRIPT = Path(__file__).with_name("gpu_kernels_run.py")
MAX_STARTS = 4
EXIT_LOST = 3
"""Of a process for which the device does nothing more, once it has said what came of its last item."""
PARTS = ("ceilings", "checks", "speeds")
LEAST_SECONDS = 1.0
STOOD_STILL = "Timeout ("
"""What `faulthandler` writes of an item that it ends."""


@dataclass
class Kernels:
    """What was found so far. done: items of each part that were begun. given_up: parts that broke."""

    parts: dict[str, Part]
    is_dry: bool
    found: dict[str, Any] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)

    def measure(self) -> dict[str, Any]:
        """By part, with what it ran on as `about`. What went wrong or was left out is said."""
        self.found |= {name: [] for name in self.parts if name != "ceilings"}
        last = list(self.parts.values())[-1]
        for _ in range(MAX_STARTS):
            if not last.has_time(LEAST_SECONDS):
                self._cut_behind("", "")
                return self.found
            ended = run_until([sys.executable, str(SCRIPT), self._order()], last.left_seconds)
            part, name = self._take(ended)
            if ended.is_cut_short:
                self._cut_behind(part, name)
            if ended.is_cut_short or ended.exit_code == 0:
                return self.found
            if not part:
                last.fail(f"the process of the kernels ended with {ended.exit_code}: {ended.last_word}")
                return self.found
        last.fail(f"{MAX_STARTS} processes came to grief; what is behind is left out")
        return self.found

    def _cut_behind(self, part: str, name: str) -> None:
        """The time ended in that part, at that item; before any where there is none."""
        names = list(self.parts)
        if part:
            self.parts[part].cut(f"{name}, and all behind it")
        for behind in names[names.index(part) + 1 :] if part else names:
            self.parts[behind].cut("all of it")

    def _order(self) -> str:
        deadlines = {name: part.deadline for name, part in self.parts.items() if name not in self.given_up}
        known = self.found.get("ceilings")
        return json.dumps({"is_dry": self.is_dry, "deadlines": deadlines, "done": self.done, "ceilings": known})

    def _take(self, ended: Ended) -> tuple[str, str]:
        """The lines of a process. The part and the item in which it was last."""
        part, begun, is_open = "", "", False
        for line in (json.loads(text) for text in ended.output.splitlines() if text.startswith("{")):
            if "about" in line:
                self.found["about"] = line["about"]
                continue
            part, is_open = line["part"], "begun" in line
            if is_open:
                begun = line["begun"]
                self.done[part] = self.done.get(part, 0) + 1
            else:
                self._keep(part, line)
        if ended.exit_code and not ended.is_cut_short:
            if is_open:
                self._lost(part, begun, ended)
            elif part and ended.exit_code != EXIT_LOST:  # not in an item: another process would come no further
                self.parts[part].fail(f"behind {begun}: {ended.last_word}")
                self.given_up.add(part)
        return part, begun

    def _keep(self, part: str, line: dict[str, Any]) -> None:
        if "cut" in line:
            self.parts[part].cut(line["cut"])
        elif "failed" in line:
            self.parts[part].fail(line["failed"])
        elif part == "ceilings":
            self.found[part] = line["row"]
        else:
            self.found[part].append(line["row"])

    def _lost(self, part: str, name: str, ended: Ended) -> None:
        """An item whose process ended in it."""
        has_stood_still = STOOD_STILL in ended.errors
        cause = (
            f"the process ended with {ended.exit_code}: {ended.last_word}"
            if not has_stood_still
            else "stood still"
        )
        if part == "checks":
            row = {"check": name, "allowed": 0.0, "difference": None, "error": cause, "is_right": False}
            self.found[part].append(row)
        self.parts[part].fail(f"{name}: {cause}")


def measure_kernels(parts: dict[str, Part], *, is_dry: bool) -> dict[str, Any]:
    """Of the parts that were asked for, in order."""
    return Kernels(parts, is_dry).measure()
