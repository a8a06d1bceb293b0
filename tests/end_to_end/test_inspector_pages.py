"""The inspector in a real browser over a live server under load: what is drawn, clicked, held, and seen to end."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from browser import View, browser, tab, window
from canvas_view import Canvas, hide
from observed_server import ObservedServer, observed
from run_rings import only_run
from shown_pages import dashboard
from steady_load import steady_load

from vllm_obs.dashboard.page_list import PAGES

pytestmark = pytest.mark.timeout(300)

NUM_BLOCKS, MAX_NUM_SEQS, STALL_SECONDS = 128, 16, 3.0
FLAGS = (
    *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-num-seqs", str(MAX_NUM_SEQS)),
    *("--slo", "ttft=0.5,e2e=2", "--stall-timeout", f"{STALL_SECONDS:g}"),
)
FLICKER_MS = 5000
FIGURE = r"\d[\d\u202f.]*"
STEPS, BLOCKS = "/observer/inspect/streams/steps", "/observer/inspect/streams/blocks"

SHOWN: dict[str, tuple[str, ...]] = {
    "overview": (
        r"over the last", r"What would help", r"Tokens out /s\s+" + FIGURE, r"Steps /s\s+[1-9]",
        r"Time to first token, p95\s+" + FIGURE + r" .?s\s+p50", rf"KV blocks: {FIGURE} % of {NUM_BLOCKS} in use",
        rf"busy {FIGURE} %", rf"Kept to it, 1 min\s+{FIGURE} %",
    ),
    "scheduler": (r"Who waits, and why", rf"{FIGURE} requests? running"),
    "kv": (rf"{NUM_BLOCKS} blocks of 16", r"after step [1-9]", rf"{FIGURE} requests? holds? blocks",
           rf"Prompt tokens found, 1 min\s+{FIGURE} %"),
    "requests": (r"\d requests, newest first", r"[1-9]\d* live and", r"\d × 404"),
    "processes": (r"3 processes, all well", r"Engine core DP0\s+pid \d+", r"all \d+ hold", r"Ready .* after start",
                  r"MiB are in RAM in 3 processes"),
    "profile": (rf"forward {FIGURE} .?s", rf"Arithmetic \(MFU\) {FIGURE} %", rf"{FIGURE} steps took"),
    "incidents": (r"incident in this run|held engine 0 up",),
}  # fmt: skip
"""Page → what must be read on it while requests are served."""


class Live:
    """A server under load and the dashboard over it, both ended at the end of the file."""

    def __init__(self, server: ObservedServer, address: str, load: contextlib.ExitStack, runs: Path) -> None:
        self.server, self.address, self.load, self.runs = server, address, load, runs

    def inspect(self, path: str, **query: Any) -> Any:
        """The Observer's own answer, of engine 0."""
        asked = "&".join(f"{name}={value}" for name, value in {"engine": 0, **query}.items())
        return self.server.inspect(f"{path}?{asked}")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its KV cache is short, and requests come for as long as the tests take."""
    model, runs = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("runs")
    env = {"VLLM_OBS_RUN_DIR": str(runs)}
    with observed(model, *FLAGS, env=env) as server, contextlib.ExitStack() as load:
        load.enter_context(steady_load(server.port))
        with dashboard("--url", f"http://127.0.0.1:{server.port}", env=env) as address:
            yield Live(server, address, load, runs)


@pytest.fixture(scope="module")
def tabs() -> Iterator[Callable[[], contextlib.AbstractContextManager[View]]]:
    with browser() as found:
        shared = window(found)
        yield lambda: tab(shared)


@pytest.fixture
def shown(tabs: Callable[[], contextlib.AbstractContextManager[View]]) -> Iterator[View]:
    """A page on which nothing may go wrong, whatever a test does there."""
    with tabs() as found:
        yield found
        found.assert_well()


def figures(text: str) -> list[int]:
    """The whole numbers in a text; thin spaces stand between thousands."""
    return [int(each.replace("\u202f", "")) for each in re.findall(r"\d[\d\u202f]*", text)]


def has_all(view: View, patterns: tuple[str, ...]) -> bool:
    return all(re.search(pattern, view.text) for pattern in patterns)


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_page_is_drawn_with_live_figures(shown: View, live: Live, name: str) -> None:
    shown.open(f"{live.address}/{name}")
    shown.wait_for(lambda: has_all(shown, SHOWN[name]), f"{SHOWN[name]}")
    assert shown.header.startswith("ok\n")
    assert f"tiny · run {live.server.inspect('state')['run']} · up " in shown.header


def test_processes_are_those_that_run(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/processes")
    family = psutil.Process(live.server.server.process.pid)
    shown.wait_for(lambda: "Engine core" in shown.text, "the tree")
    engine = live.server.server.child("EngineCore").pid
    assert {family.pid, engine} < set(figures(" ".join(re.findall(r"pid \d+", shown.text))))
    shown.press("button", "Take stacks")
    stacks = shown.page.locator("[data-testid=stExpander]", has_text=f"EngineCore_DP0 (pid {engine})")
    stacks.locator("summary").click()
    shown.wait_for(lambda: "MainThread" in stacks.inner_text(), "the threads of the engine")
    assert "vllm_obs/engine/core/" in stacks.inner_text()


def test_windows_of_the_overview_are_kept_in_the_address(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/overview?window=5m")
    for words, name in (("whole run", "run"), ("10 s", "10s")):
        shown.page.get_by_role("radio", name=words).click()
        shown.wait_for(lambda name=name: shown.query.get("window") == name, f"window={name}")
    shown.wait_for(lambda: bool(re.search(r"over the last (10\.0|\d\.\d+) s", shown.text)), "ten seconds")


def hold(shown: View, live: Live) -> tuple[Canvas, int]:
    """Click on a step of the live stream; the step at which the page is held then."""
    shown.open(f"{live.address}/scheduler?engine=0")
    stream = Canvas(shown, "step-stream")
    shown.wait_for(lambda: "of engine 0: live, follows" in stream.words and "Step " in stream.words, "steps")
    for across in (0.8, 0.6, 0.7, 0.5):  # where the engine was idle there is nothing to click on
        stream.click(across, 0.55)
        with contextlib.suppress(AssertionError):
            shown.wait_for(lambda: "step" in shown.query, "a step in the address", 3)
            break
    return stream, int(shown.query["step"])


def assert_step_is_shown(shown: View, live: Live, stream: Canvas, number: int) -> None:
    """Every figure of the held page is what the Observer says of that step."""
    shown.wait_for(lambda: f"Step {number} in words" in shown.text, f"step {number}")
    shown.wait_for(lambda: f"Step {number} · " in stream.words, f"step {number} on the canvas")
    shown.settle()
    step, queue = live.inspect(f"steps/{number}"), live.inspect(f"steps/{number}/queue")
    planned, num_tokens = step["planned"], sum(step["planned"]["num_scheduled_tokens"])
    budget = live.inspect("config")["engines"]["0"]["max_num_batched_tokens"]
    assert figures(shown.metric("Tokens")) == [num_tokens, budget]
    assert figures(shown.metric("Running")) == [planned["num_running"]]
    levels = [planned[f"num_{name}_blocks"] for name in ("active", "cached", "free")]
    assert [figures(shown.metric(name))[0] for name in ("Blocks active", "Cached", "Free")] == levels

    text = shown.text
    waits = queue["num_waiting"]
    assert f"{planned['num_running']} request{'s' * (planned['num_running'] != 1)} ran and " in text
    assert f"ran and {waits} waited: " in text if waits else "ran and nobody waited" in text
    said = f"{planned['num_running']} running, {waits} waiting"
    assert f"{said}{': ' if planned['head_reason'] else '.'}" in stream.words
    assert f"{num_tokens} of {budget} tokens" in stream.words
    assert f"KV blocks: {levels[0]} active, {levels[1]} cached, {levels[2]} free" in stream.words
    assert_rows_are_shown(shown, planned, queue["waiting"])


def assert_rows_are_shown(shown: View, planned: dict[str, Any], waiting: list[dict[str, Any]]) -> None:
    batch = [(row["request"], int(row["tokens"])) for row in shown.table("request", "tokens")]
    run = list(zip(planned["request_ids"], planned["num_scheduled_tokens"], strict=True))
    assert batch == run[: len(batch)]
    assert len(batch) >= min(len(run), 4), "the rest is below the edge of the table"
    line = [tuple(row.values()) for row in shown.table("place", "request")] if waiting else []
    known = [
        (
            str(row["place"] + 1),
            row["request_id"],
            row["reason"],
            str(row["seconds"]),
            str(row["num_prompt_tokens"]),
        )
        for row in waiting
    ]
    assert [row[:5] for row in line] == known[: len(line)]
    assert len(line) >= min(len(known), 4)


def test_click_on_a_step_holds_the_page_at_it_with_the_observers_figures(shown: View, live: Live) -> None:
    stream, step = hold(shown, live)
    assert_step_is_shown(shown, live, stream, step)
    for key, number in (("ArrowRight", step + 1), ("ArrowLeft", step), ("ArrowLeft", step - 1)):
        stream.press(key)
        shown.wait_for(lambda number=number: shown.query.get("step") == str(number), f"step {number}")
    assert_step_is_shown(shown, live, stream, step - 1)
    shown.press("button", "Follow live")
    shown.wait_for(lambda: "step" not in shown.query and "follows what happens" in stream.words, "the live stream")
    shown.wait_for(lambda: "Who waits, and why" in shown.text, "the queues as they are now")
    assert shown.streams == [STEPS], "one stream, however often the page was run"


def test_bar_and_links_keep_the_engine_and_the_step(shown: View, live: Live) -> None:
    _, step = hold(shown, live)
    for page in [*PAGES[2:], PAGES[0], PAGES[1]]:
        shown.press("link", page.title)
        path = f"/{page.name}?" if page is not PAGES[0] else "/?"
        shown.wait_for(lambda path=path: shown.page.url.startswith(live.address + path), page.title)
        shown.wait_for(lambda: {"engine": "0", "step": str(step)}.items() <= shown.query.items(), page.title)
        shown.settle()
        shown.wait_for(lambda: f"paused after step {step} of engine 0" in shown.text, page.title)


def test_blocks_of_a_held_step_are_the_observers(shown: View, live: Live) -> None:
    _, step = hold(shown, live)
    shown.press("link", "KV blocks as they were after this step")
    shown.page.wait_for_url("**/kv?**")
    blocks = Canvas(shown, "block-map")
    shown.wait_for(lambda: f"paused at step {step}: " in blocks.words, "the map of the step")
    levels = live.inspect("blocks/map", step=step)["levels"]
    words = f"{levels['num_active']} active blocks, {levels['num_cached']} cached, {levels['num_free']} free"
    assert words.replace("1 active blocks", "1 active block") in blocks.words
    assert f"after step {step}" in shown.text.replace("\u202f", "")
    legend = [re.search(rf"{name} (\d+) \(", shown.text) for name in ("active", "cached", "free")]
    assert [int(each[1]) for each in legend if each] == list(levels.values())
    assert blocks.state == f"paused at step {step}"


def test_request_is_filtered_chosen_and_found_again_by_its_link(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/requests")
    shown.page.get_by_role("radio", name="ended").click()
    shown.wait_for(lambda: shown.query.get("state") == "ended", "state=ended")
    field = shown.page.get_by_role("textbox", name="Id, label or trace")
    field.fill("wave-1")
    field.press("Enter")
    shown.wait_for(lambda: shown.query.get("text") == "wave-1", "text=wave-1")
    shown.settle()
    shown.wait_for(lambda: shown.has_table("came at", "label"), "a row")
    rows = shown.table("came at", "label")
    assert {row["label"][:6] for row in rows} == {"wave-1"}
    assert {row["state"] for row in rows} == {"ended"}

    box = shown.page.locator("[class*=st-key-requests-] canvas").first.bounding_box()
    assert box is not None
    shown.page.mouse.click(box["x"] + 16, box["y"] + 35 + 17)
    shown.wait_for(lambda: "request" in shown.query, "the request that was chosen")
    name = shown.query["request"]
    assert_stages_sum_to_the_latency(shown, live, name)
    shown.open(f"{live.address}/requests?request={name}")
    assert_stages_sum_to_the_latency(shown, live, name)


def assert_stages_sum_to_the_latency(shown: View, live: Live, name: str) -> None:
    shown.wait_for(lambda: name in shown.text and shown.has_table("stage", "seconds"), name)
    *stages, whole = [
        (row["stage"], round(float(row["seconds"]) * 1e9)) for row in shown.table("stage", "seconds")
    ]
    found = next(row for row in live.server.request(name)["sequences"] if row["request_id"] == name)
    assert dict(stages) == {stage: length for stage, length in found["stage_ns"].items() if length}
    assert whole == ("sum", found["latency_ns"])
    assert sum(length for _, length in stages) == found["latency_ns"]
    assert "all of its latency, to the nanosecond" in shown.table("stage", "seconds")[-1]["what happens"]


def test_profile_of_stacks_opens_by_itself_with_its_flame_graph(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/profile")
    shown.page.get_by_role("radio", name="Stacks of all processes").click()
    seconds = shown.page.get_by_label("Seconds, at most")
    seconds.fill("1")
    seconds.press("Tab")
    shown.press("button", "Start")
    shown.wait_for(lambda: "profile" in shown.query, "the name of the profile")
    flames = Canvas(shown, "flame-graph")
    shown.wait_for(lambda: flames.words != "" and len(flames.colours) > 20, "the flame graph")
    row = shown.table("Profile", "Of")[0]
    assert (row["Profile"], row["Of"], row["State"]) == (shown.query["profile"], "stacks", "written")


MARK = """() => {
  const nodes = [...document.querySelectorAll("[data-testid=stMetric], [data-testid=stDataFrame], .st-key-strip, canvas")];
  window.marked = nodes;
  return nodes.length;
}"""
GONE = "() => window.marked.filter(node => !node.isConnected).map(node => node.outerHTML.slice(0, 200))"
SCROLLED = "() => document.querySelector('[data-testid=stMain]').scrollTop"


def test_pages_that_refresh_keep_their_elements_their_scroll_and_what_is_typed(
    shown: View, live: Live, tabs: Callable[[], contextlib.AbstractContextManager[View]]
) -> None:
    inputs = {
        "overview": "Objectives to hold the last requests to",
        "scheduler": "",
        "requests": "Id, label or trace",
    }
    with contextlib.ExitStack() as open_tabs:
        views = {name: open_tabs.enter_context(tabs()) for name in list(inputs)[1:]} | {"overview": shown}
        for name, view in views.items():
            view.open(f"{live.address}/{name}")
            view.wait_for(lambda name=name, view=view: has_all(view, SHOWN[name]), name)
        before = {}
        for name, view in views.items():
            if inputs[name]:
                view.page.get_by_role("textbox", name=inputs[name]).type("ttft=0.")
            view.page.mouse.wheel(0, 90)
            view.page.wait_for_timeout(300)
            assert view.page.evaluate(MARK) > 3
            before[name] = (view.page.evaluate(SCROLLED), view.header)
        shown.page.wait_for_timeout(FLICKER_MS)
        for name, view in views.items():
            assert view.page.evaluate(GONE) == [], name
            scrolled, header = before[name]
            assert view.page.evaluate(SCROLLED) == scrolled > 0, name
            assert view.header != header, f"{name} was not refreshed"
            if inputs[name]:
                assert view.page.get_by_role("textbox", name=inputs[name]).input_value() == "ttft=0."
            view.assert_well()


def test_step_stream_moves_while_it_is_seen_and_rests_while_it_is_hidden(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/scheduler")
    stream = Canvas(shown, "step-stream")
    shown.wait_for(lambda: "follows what happens" in stream.words, "the stream")
    num_frames, digest = stream.num_frames, stream.digest
    shown.page.wait_for_timeout(1000)
    assert stream.num_frames > num_frames + 3
    assert stream.digest != digest
    hide(shown, True)
    shown.page.wait_for_timeout(100)
    num_frames, digest = stream.num_frames, stream.digest
    shown.page.wait_for_timeout(1000)
    assert (stream.num_frames, stream.digest) == (num_frames, digest)
    assert shown.streams == [STEPS]
    hide(shown, False)
    shown.wait_for(lambda: stream.num_frames > num_frames and stream.digest != digest, "new frames")
    assert shown.streams == [STEPS, STEPS], "the first was closed meanwhile"


def test_block_map_listens_to_one_stream(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/kv")
    blocks = Canvas(shown, "block-map")
    shown.wait_for(lambda: f"Map of {NUM_BLOCKS} KV blocks of engine 0, live: " in blocks.words, "the map")
    num_frames = blocks.num_frames
    shown.wait_for(lambda: blocks.num_frames > num_frames + 3, "frames")
    assert shown.streams == [BLOCKS]


def test_recording_of_the_run_is_shown_by_the_same_pages(shown: View, live: Live, tmp_path: Path) -> None:
    file = tmp_path / "run.rec"
    command = [
        sys.executable,
        "-m",
        "vllm_obs",
        "record",
        str(file),
        "--last",
        "30s",
        "--run",
        str(only_run(live.runs)),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with dashboard("--recording", str(file)) as address:
        for page in PAGES:
            shown.open(f"{address}/{page.name}")
            shown.wait_for(lambda: shown.header.startswith("recording\ntiny · run "), page.title)
            shown.assert_well()
            if page.name == "scheduler":
                stream = Canvas(shown, "step-stream")
                shown.wait_for(lambda stream=stream: "recording, its last steps. Step " in stream.words, "steps")


# What follows ends the server of this file, and is its last test.


def test_open_pages_tell_of_a_stall_and_of_the_servers_end(
    live: Live, tabs: Callable[[], contextlib.AbstractContextManager[View]]
) -> None:
    server = live.server.server
    with tabs() as overview, tabs() as scheduler, tabs() as incidents:
        views = {"overview": overview, "scheduler": scheduler, "incidents": incidents}
        for name, view in views.items():
            view.open(f"{live.address}/{name}")
            view.wait_for(lambda name=name, view=view: has_all(view, SHOWN[name]), name)
        stream = Canvas(scheduler, "step-stream")
        engine = server.child("EngineCore")
        engine.send_signal(signal.SIGSTOP)
        overview.wait_for(lambda: overview.header.startswith("stalled\n"), "the word in the header", 30)
        scheduler.wait_for(lambda: "the engine stands still since" in stream.state, "the word on the canvas")
        incidents.wait_for(lambda: incidents.has_table("When", "What"), "the incident in the list")
        row = incidents.table("When", "What")[0]
        assert (row["What"], row["Who"]) == ("stalled, lasts", f"EngineCore_DP0 ({engine.pid})")
        engine.send_signal(signal.SIGCONT)
        overview.wait_for(lambda: overview.header.startswith("ok\n"), "health after the stall", 30)
        live.load.close()

        figure = overview.metric("Steps /s")
        server.process.kill()
        for view in views.values():
            view.wait_for(lambda view=view: "The server does not answer since" in view.header, "the end", 30)
        assert re.match(FIGURE, figure)
        assert re.match(FIGURE, overview.metric("Steps /s")), "the last figures stay"
        scheduler.wait_for(
            lambda: "no stream: the server does not answer" in stream.words, "the end on the canvas"
        )
        for view in views.values():
            assert (view.exceptions, view.errors, view.outside) == ([], [], [])
