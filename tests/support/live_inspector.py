"""A server under load with the inspector over it, and what must be read on each page meanwhile."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from browser import View
from observed_server import ObservedServer, synthetic
from shown_pages import dashboard
from steady_load import UNHURRIED, steady_load

NUM_BLOCKS = 128
FLAGS = (
    *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-num-seqs", "16"),
    *("--slo", "ttft=0.5,e2e=2", "--stall-timeout", "3"),
)
FIGURE = r"\d[\d\u202f.]*"

SHOWN: dict[str, tuple[str, ...]] = {
    "overview": (
        r"over the last", r"What would help", rf"Tokens out /s\s+{FIGURE}", r"Steps /s\s+[1-9]",
        rf"Time to first token, p95\s+{FIGURE} .?s\s+p50", rf"KV blocks: {FIGURE} % of {NUM_BLOCKS} in use",
        rf"busy {FIGURE} %", rf"Kept to it, 1 min\s+{FIGURE} %",
    ),
    "scheduler": (r"Who waits, and why", rf"{FIGURE} requests? running"),
    "kv": (
        rf"{NUM_BLOCKS} blocks of 16", r"after step [1-9]", rf"{FIGURE} requests? holds? blocks",
        rf"Prompt tokens found, 1 min\s+{FIGURE} %",
    ),
    "requests": (r"\d requests, newest first", r"[1-9]\d* live and", r"\d × 404"),
    "processes": (
        r"3 processes, all well", r"Engine core DP0\s+pid \d+", r"all \d+ hold", r"Ready .* after start",
        r"MiB are in RAM in 3 processes",
    ),
    "profile": (rf"forward {FIGURE} .?s", rf"Arithmetic \(MFU\) {FIGURE} %", rf"{FIGURE} steps took"),
    "incidents": (r"incident in this run|held engine 0 up",),
}  # fmt: skip
"""Page → what must be read on it while requests are served."""


class Live(NamedTuple):
    """`load` is closed to end the requests before the server; `runs` is where it keeps its run."""

    server: ObservedServer
    address: str
    load: contextlib.ExitStack
    runs: Path

    def inspect(self, path: str, **query: Any) -> Any:
        """The Observer's own answer, of engine 0."""
        asked = "&".join(f"{name}={value}" for name, value in {"engine": 0, **query}.items())
        return self.server.inspect(f"{path}?{asked}")

    def newest_step(self) -> int:
        """A step that was over a moment ago."""
        return int(self.inspect("steps", limit=8)["steps"]["step"][0])


@contextlib.contextmanager
def live_inspector(runs: Path) -> Iterator[Live]:
    """A server whose KV cache is short, requests for as long as the block lasts, and the dashboard."""
    env = {"VLLM_OBS_RUN_DIR": str(runs), **UNHURRIED}
    with synthetic(*FLAGS, env=env) as server, contextlib.ExitStack() as load:
        load.enter_context(steady_load(server.port))
        with dashboard("--url", f"http://127.0.0.1:{server.port}", env=env) as address:
            yield Live(server, address, load, runs)


def is_drawn(view: View, name: str) -> bool:
    """Whether all that page must show is on it."""
    text = view.text
    return all(re.search(pattern, text) for pattern in SHOWN[name])


def open_page(view: View, live: Live, name: str) -> None:
    """Go to a page, and wait until its figures are there."""
    view.open(f"{live.address}/{name}")
    view.wait_for(lambda: is_drawn(view, name), f"{SHOWN[name]}")


def figures(text: str) -> list[int]:
    """The whole numbers in a text; thin spaces stand between thousands."""
    return [int(each.replace("\u202f", "")) for each in re.findall(r"\d[\d\u202f]*", text)]


def count(number: int, noun: str) -> str:
    """So many of them, as pages write it."""
    return f"{number} {noun}{'s' * (number != 1)}"
