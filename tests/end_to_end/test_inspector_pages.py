"""The inspector in a real browser over a live server under load: what is drawn, clicked, held, and seen to end."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from browser import View, browser, tab, window
from canvas_view import Canvas, hide
from live_inspector import FIGURE, NUM_BLOCKS, Live, count, figures, live_inspector, open_page
from run_rings import only_run
from shown_pages import dashboard

from vllm_obs.dashboard.page_list import PAGES

pytestmark = pytest.mark.timeout(300)

FLICKER_MS = 3000
REST_MS = 1000
STEPS, BLOCKS = "/observer/inspect/streams/steps", "/observer/inspect/streams/blocks"
TYPED = "ttft=0."

Tabs = Callable[[], AbstractContextManager[View]]


@pytest.fixture(scope="module")
def tabs() -> Iterator[Tabs]:
    """Opens pages in one window of one browser; asked for first, so that no server is started for none."""
    with browser() as found:
        shared = window(found)
        yield lambda: tab(shared)


@pytest.fixture(scope="module")
def one_tab(tabs: Tabs) -> Iterator[View]:
    """For tests that need one: to open another costs more than to draw a page."""
    with tabs() as found:
        yield found


@pytest.fixture(scope="module")
def live(tabs: Tabs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_inspector(tmp_path_factory.mktemp("runs")) as found:
        yield found


@pytest.fixture
def shown(one_tab: View) -> Iterator[View]:
    """A page on which nothing may go wrong, whatever a test does there."""
    found = View(one_tab.page)
    yield found
    found.assert_well()
    found.page.goto("about:blank")


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_page_is_drawn_with_live_figures(shown: View, live: Live, name: str) -> None:
    open_page(shown, live, name)
    shown.wait_for(lambda: shown.header.startswith("ok\n"), "a request among the last seconds'")
    assert f"tiny · run {live.server.inspect('state')['run']} · up " in shown.header


def test_processes_are_those_that_run_and_tell_their_stacks(shown: View, live: Live) -> None:
    open_page(shown, live, "processes")
    engine = live.server.server.child("EngineCore").pid
    assert {live.server.server.process.pid, engine} < set(figures(" ".join(re.findall(r"pid \d+", shown.text))))
    shown.press("button", "Take stacks")
    stacks = shown.page.locator("[data-testid=stExpander]", has_text=f"EngineCore_DP0 (pid {engine})")
    stacks.locator("summary").click()
    shown.wait_for(lambda: "MainThread" in stacks.inner_text(), "the threads of the engine")
    assert "vllm_obs/engine/" in stacks.inner_text()


def test_window_of_the_overview_is_kept_in_the_address(shown: View, live: Live) -> None:
    shown.open(f"{live.address}/overview?window=5m")
    for words, name in (("whole run", "run"), ("10 s", "10s")):
        shown.page.get_by_role("radio", name=words).click()
        shown.wait_for(lambda name=name: shown.query.get("window") == name, f"window={name}")
    shown.wait_for(lambda: bool(re.search(r"over the last (10\.0|\d\.\d+) s", shown.text)), "ten seconds")


def hold(shown: View, live: Live) -> tuple[Canvas, int]:
    """Click on a step of the live stream; the step at which the page is held then."""
    shown.open(f"{live.address}/scheduler?engine=0")
    stream = Canvas(shown, "step-stream")
    shown.wait_for(lambda: re.search("engine 0: live, follows .* Step ", stream.words) is not None, "steps")
    for across in (0.8, 0.6, 0.7, 0.5):  # where the engine was idle there is nothing to click on
        stream.click(across, 0.55)
        with contextlib.suppress(AssertionError):
            shown.wait_for(lambda: "step" in shown.query, "a step in the address", 5)
            break
    return stream, int(shown.query["step"])


def assert_step_is_shown(shown: View, live: Live, stream: Canvas, number: int) -> None:
    """Every figure of the held page is what the Observer says of that step."""
    shown.wait_for(lambda: f"Step {number} in words" in shown.text, f"step {number}")
    shown.wait_for(lambda: f"Step {number} · " in stream.words, f"step {number} on the canvas")
    shown.settle()
    step, queue = live.inspect(f"steps/{number}"), live.inspect(f"steps/{number}/queue")
    planned, num_tokens = step["planned"], sum(step["planned"]["num_scheduled_tokens"])
    num_running, num_waiting = planned["num_running"], queue["num_waiting"]
    budget = live.inspect("config")["engines"]["0"]["max_num_batched_tokens"]
    levels = [planned[f"num_{name}_blocks"] for name in ("active", "cached", "free")]
    assert figures(shown.metric("Tokens")) == [num_tokens, budget]
    assert figures(shown.metric("Running")) == [num_running]
    assert [figures(shown.metric(name))[0] for name in ("Blocks active", "Cached", "Free")] == levels
    waits = f"ran and {num_waiting} waited: " if num_waiting else "ran and nobody waited."
    assert f"{count(num_running, 'request')} {waits}" in shown.text
    assert f"{num_running} running, {num_waiting} waiting" in stream.words
    assert f"{count(len(planned['request_ids']), 'request')}, {num_tokens} of {budget} tokens" in stream.words
    assert "KV blocks: {} active, {} cached, {} free".format(*levels) in stream.words
    assert_rows_are_shown(shown, planned, queue["waiting"])


def assert_rows_are_shown(shown: View, planned: dict[str, Any], waiting: list[dict[str, Any]]) -> None:
    """The rows in view of the batch and of the line, with their reasons; the rest is below a table's edge."""
    shown.wait_for(lambda: shown.has_table("request", "tokens"), "the batch")
    run = [
        (name, str(num)) for name, num in zip(planned["request_ids"], planned["num_scheduled_tokens"], strict=True)
    ]
    batch = [(row["request"], row["tokens"]) for row in shown.table("request", "tokens")]
    assert batch == run[: len(batch)]
    assert len(batch) >= min(len(run), 4)
    names = ("request_id", "reason", "seconds", "num_prompt_tokens", "state")
    stood = [tuple(str(value) for value in (row["place"] + 1, *map(row.get, names))) for row in waiting]
    line = [tuple(row.values()) for row in shown.table("place", "request")] if waiting else []
    assert line == stood[: len(line)]
    assert len(line) >= min(len(stood), 4)


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


def test_bar_keeps_the_engine_and_the_step(shown: View, live: Live) -> None:
    step = live.newest_step()
    shown.open(f"{live.address}/scheduler?engine=0&step={step}")
    for page in [*PAGES[2:], PAGES[0], PAGES[1]]:
        shown.press("link", page.title)
        path = f"/{page.name}?" if page is not PAGES[0] else "/?"
        shown.wait_for(lambda path=path: shown.page.url.startswith(live.address + path), page.title)
        shown.wait_for(lambda: {"engine": "0", "step": str(step)}.items() <= shown.query.items(), page.title)
        shown.wait_for(lambda: f"paused after step {step} of engine 0" in shown.text, page.title)
        shown.settle()


def test_blocks_of_a_held_step_are_the_observers(shown: View, live: Live) -> None:
    step = live.newest_step()
    shown.open(f"{live.address}/scheduler?engine=0&step={step}")
    link = shown.page.get_by_role("link", name="KV blocks as they were after this step")
    assert link.get_attribute("href") == f"/kv?engine=0&step={step}"
    shown.open(f"{live.address}{link.get_attribute('href')}")
    blocks = Canvas(shown, "block-map")
    shown.wait_for(
        lambda: f"{NUM_BLOCKS} KV blocks of engine 0, paused at step {step}: " in blocks.words,
        "the map of the step",
    )
    levels = [
        live.inspect("blocks/map", step=step)["levels"][f"num_{name}"] for name in ("active", "cached", "free")
    ]
    active, cached, free = levels
    assert f": {count(active, 'active block')}, {cached} cached, {free} free" in blocks.words
    assert blocks.state == f"paused at step {step}"
    shown.wait_for(lambda: f"after step {step}" in shown.text.replace("\u202f", ""), "its figures")
    legend = [re.search(rf"{name} (\d+) \(", shown.text) for name in ("active", "cached", "free")]
    assert [int(each[1]) for each in legend if each] == levels


def test_request_is_filtered_chosen_and_found_again_by_its_link(shown: View, live: Live) -> None:
    open_page(shown, live, "requests")
    shown.page.get_by_role("radio", name="ended").click()
    shown.wait_for(lambda: shown.query.get("state") == "ended", "state=ended")
    field = shown.input("Id, label or trace")
    field.fill("wave-1")
    field.press("Enter")
    shown.wait_for(lambda: shown.query.get("text") == "wave-1", "text=wave-1")
    shown.settle()

    def labels() -> set[str]:
        if not shown.has_table("came at", "label"):  # it is about to be drawn anew
            return set()
        return {f"{row['label'][:6]} {row['state']}" for row in shown.table("came at", "label")}

    shown.wait_for(lambda: labels() == {"wave-1 ended"}, "the rows that were asked for")
    shown.choose_row("requests")
    shown.wait_for(lambda: "request" in shown.query, "the request that was chosen")
    name = shown.query["request"]
    assert_stages_sum_to_the_latency(shown, live, name)
    shown.open(f"{live.address}/requests?request={name}")
    assert_stages_sum_to_the_latency(shown, live, name)


def assert_stages_sum_to_the_latency(shown: View, live: Live, name: str) -> None:
    shown.wait_for(lambda: name in shown.text and shown.has_table("stage", "seconds"), name)
    rows = shown.table("stage", "seconds")
    *stages, whole = [(row["stage"], round(float(row["seconds"]) * 1e9)) for row in rows]
    found = next(row for row in live.server.request(name)["sequences"] if row["request_id"] == name)
    assert dict(stages) == {stage: length for stage, length in found["stage_ns"].items() if length}
    assert whole == ("sum", found["latency_ns"])
    assert sum(length for _, length in stages) == found["latency_ns"]
    assert rows[-1]["what happens"] == "all of its latency, to the nanosecond"


def test_profile_of_stacks_opens_by_itself_with_its_flame_graph(shown: View, live: Live) -> None:
    open_page(shown, live, "profile")
    shown.page.get_by_role("radio", name="Stacks of all processes").click()
    shown.input("Seconds, at most").fill("1")
    shown.input("Seconds, at most").press("Tab")
    shown.press("button", "Start")
    shown.wait_for(lambda: "profile" in shown.query, "the name of the profile")
    flames = Canvas(shown, "flame-graph")
    shown.wait_for(lambda: flames.words != "" and len(flames.colours) > 20, "the flame graph", 40)
    shown.wait_for(lambda: shown.has_table("Profile", "Of"), "the table of profiles")
    row = shown.table("Profile", "Of")[0]
    assert (row["Profile"], row["Of"], row["State"]) == (shown.query["profile"], "stacks", "written")


def test_refreshed_pages_keep_their_elements_their_place_and_what_is_typed(live: Live, tabs: Tabs) -> None:
    inputs = {
        "overview": "Objectives to hold the last requests to",
        "scheduler": "",
        "requests": "Id, label or trace",
    }
    with contextlib.ExitStack() as opened:
        views = {name: opened.enter_context(tabs()) for name in inputs}
        before = {}
        for name, view in views.items():
            view.page.set_viewport_size({"width": 1400, "height": 600})
            open_page(view, live, name)
            if label := inputs[name]:
                view.input(label).type(TYPED)
            view.scroll(90)
            view.page.wait_for_timeout(300)
            assert view.scrolled == 90
            assert view.mark() > 5
            before[name] = view.header
        view.page.wait_for_timeout(FLICKER_MS)
        for name, view in views.items():
            assert view.replaced() == [], name
            assert view.scrolled == 90, name
            assert view.header != before[name], f"{name} was not refreshed"
            assert not inputs[name] or view.input(inputs[name]).input_value() == TYPED
            view.assert_well()


def test_step_stream_moves_while_it_is_seen_and_rests_while_it_is_hidden(shown: View, live: Live) -> None:
    open_page(shown, live, "scheduler")
    stream = Canvas(shown, "step-stream")
    shown.wait_for(lambda: "follows what happens" in stream.words, "the stream")
    num_frames, digest = stream.num_frames, stream.digest
    shown.wait_for(lambda: stream.num_frames > num_frames + 5 and stream.digest != digest, "moving")
    hide(shown, True)
    shown.page.wait_for_timeout(100)
    num_frames, digest = stream.num_frames, stream.digest
    shown.page.wait_for_timeout(REST_MS)
    assert (stream.num_frames, stream.digest) == (num_frames, digest)
    assert shown.streams == [STEPS]
    hide(shown, False)
    shown.wait_for(lambda: stream.num_frames > num_frames and stream.digest != digest, "moving again")
    assert shown.streams == [STEPS, STEPS], "the first was closed meanwhile"


def test_block_map_moves_and_listens_to_one_stream(shown: View, live: Live) -> None:
    open_page(shown, live, "kv")
    blocks = Canvas(shown, "block-map")
    shown.wait_for(lambda: f"Map of {NUM_BLOCKS} KV blocks of engine 0, live: " in blocks.words, "the map")
    num_frames, digest = blocks.num_frames, blocks.digest
    shown.wait_for(lambda: blocks.num_frames > num_frames + 3 and blocks.digest != digest, "moving")
    assert shown.streams == [BLOCKS]


def test_recording_of_the_run_is_shown_by_the_same_pages(shown: View, live: Live, tmp_path: Path) -> None:
    file = tmp_path / "run.rec"
    command = ["record", str(file), "--last", "15s", "--run", str(only_run(live.runs))]
    subprocess.run([sys.executable, "-m", "vllm_obs", *command], check=True, capture_output=True, timeout=60)
    with dashboard("--recording", str(file)) as address:
        shown.open(address)
        for page in PAGES:
            shown.press("link", page.title)
            shown.page.wait_for_selector(f"a[aria-current=page]:has-text('{page.title}')")
            shown.settle()
            assert shown.header.split("\n")[0] == "recording"
            shown.assert_well()
            if page.name == "scheduler":
                stream = Canvas(shown, "step-stream")
                shown.wait_for(lambda stream=stream: "recording, its last steps" in stream.words, "steps")
                assert "Step " in stream.words


def test_open_pages_tell_of_a_stall_and_of_the_end_of_the_server(live: Live, tabs: Tabs) -> None:
    """The last test of the file: it ends the server."""
    server, engine = live.server.server, live.server.server.child("EngineCore")
    with tabs() as overview, tabs() as scheduler, tabs() as incidents:
        views = {"overview": overview, "scheduler": scheduler, "incidents": incidents}
        for name, view in views.items():
            open_page(view, live, name)
        stream = Canvas(scheduler, "step-stream")
        engine.send_signal(signal.SIGSTOP)
        overview.wait_for(lambda: overview.header.startswith("stalled\n"), "the word in the header", 30)
        scheduler.wait_for(lambda: "stands still" in stream.state, "the word on the canvas")
        told = {"What": "stalled, lasts", "Who": f"EngineCore_DP0 ({engine.pid})"}
        incidents.wait_for(
            lambda: (
                incidents.has_table("When", "What") and told.items() <= incidents.table("When", "What")[0].items()
            ),
            "the incident in the list",
        )
        engine.send_signal(signal.SIGCONT)
        overview.wait_for(lambda: overview.header.startswith("ok\n"), "health after the stall", 30)

        live.load.close()
        server.process.kill()
        for view in views.values():
            view.wait_for(lambda view=view: "The server has not answered for" in view.header, "its end", 30)
        assert re.match(FIGURE, overview.metric("Steps /s")), "the last figures stay"
        scheduler.wait_for(
            lambda: "no stream: the server does not answer" in stream.words, "its end on the canvas"
        )
        for view in views.values():
            assert (view.exceptions, view.errors, view.outside) == ([], [], [])
