"""The flame graph's script: what ran or all samples, in words of its own unit, and an empty profile is said."""

import json
import shutil
import subprocess
from importlib import resources
from typing import Any

import pytest

from vllm_obs.dashboard.canvas.flame_graph import HTML

NODE = shutil.which("node")
SECONDS = 30
PRELUDE = r"""
globalThis.ResizeObserver = class { observe() {} disconnect() {} };
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
globalThis.requestAnimationFrame = () => 0;
globalThis.cancelAnimationFrame = () => {};
const made = (dataset = {}) => ({
  dataset, attributes: {}, listeners: {}, textContent: "", hidden: false, style: {},
  addEventListener(name, act) { this.listeners[name] = act; },
  setAttribute(name, value) { this.attributes[name] = value; },
});
const buttons = [made({ what: "ran" }), made({ what: "all" })];
const parts = {
  ".canvas-box": made(), "canvas": made(), ".canvas-tip": made(), ".found": made(),
  ".what": { ...made(), querySelectorAll: () => buttons }, "[data-do=whole]": made(), "[data-find]": made(),
};
const element = { querySelector: (name) => parts[name] };
const texts = {
  ran: "Worker;Main;step (a.py:1) 2500\n",
  all: "Worker;Main;step (a.py:1) 1\nWorker;Main;wait (b.py:1) 9\n",
};
const asked = [];
globalThis.fetch = async (path) => {
  const name = path.split("/").at(-1), text = texts[name];
  asked.push(name);
  return { ok: text !== undefined, status: 404, text: async () => text };
};
const settle = () => new Promise((done) => setTimeout(done, 5));
const pressed = () => buttons.map((button) => button.attributes["aria-pressed"]);
const graph = (paths) => new FlameGraph(element, { paths, colours: { request: ["#000"], level: {} } });
"""
BOTH = '{ all: "p/all", ran: "p/ran" }'

needs_node = pytest.mark.skipif(NODE is None, reason="needs node, to run the script without a browser")


def told(deeds: str) -> Any:
    """What `answer` is after these deeds."""
    assert NODE is not None
    folder = resources.files("vllm_obs.dashboard.canvas")
    code = "\n".join(
        folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in ("stream", "flame_graph")
    )
    whole = f"{code}\n{PRELUDE}\nlet answer;\n{deeds}\nconsole.log(JSON.stringify(answer));"
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", whole], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@needs_node
def test_what_ran_is_drawn_first_and_counted_in_cpu_time() -> None:
    deeds = f"""const drawn = graph({BOTH}); await settle();
      const step = drawn.root.children[0].children[0].children[0];
      answer = [asked, pressed(), drawn.root.total, drawn.words(step)];"""
    assert told(deeds) == [
        ["ran"],
        ["true", "false"],
        2500,
        "step (a.py:1)\n2.5 ms of CPU, 100.0 % of all; in it itself 2.5 ms of CPU, 100.0 %",
    ]


@needs_node
def test_all_samples_are_a_click_away_and_stay_for_the_next_profile() -> None:
    deeds = rf"""const drawn = graph({BOTH}); await settle(); buttons[1].listeners.click(); await settle();
      const before = [drawn.root.total, pressed(), drawn.words(drawn.root).split("\n")[1]];
      drawn.show({{ all: "q/all", ran: "q/ran" }}); await settle();
      answer = [before, drawn.what, asked];"""
    assert told(deeds) == [
        [10, ["false", "true"], "10 samples, 100.0 % of all; in it itself 0 samples, 0.0 %"],
        "all",
        ["ran", "all", "all"],
    ]


@needs_node
def test_where_only_samples_are_known_there_is_nothing_to_choose() -> None:
    deeds = """const drawn = graph({ all: "p/all", ran: "" }); await settle();
      const before = [parts[".what"].hidden, drawn.what, drawn.root.total];
      drawn.show({ all: "q/all", ran: "q/ran" }); await settle();
      answer = [before, [parts[".what"].hidden, drawn.what]];"""
    assert told(deeds) == [[True, "all", 10], [False, "ran"]]


@needs_node
def test_empty_profile_and_one_that_is_gone_are_said() -> None:
    deeds = f"""texts.ran = ""; const drawn = graph({BOTH}); await settle();
      const first = [parts[".found"].textContent, drawn.root];
      delete texts.all; buttons[1].listeners.click(); await settle();
      answer = [first, parts[".found"].textContent];"""
    assert told(deeds) == [["nothing ran meanwhile", None], "the stacks cannot be read: status 404"]


@needs_node
def test_slow_answer_does_not_take_the_place_of_what_was_asked_for_later() -> None:
    deeds = f"""const fast = globalThis.fetch;
      globalThis.fetch = async (path) => {{ if (path.endsWith("ran")) await settle(); return fast(path); }};
      const drawn = graph({BOTH}); buttons[1].listeners.click(); await settle(); await settle(); await settle();
      answer = [drawn.what, drawn.root.total, pressed()];"""
    assert told(deeds) == ["all", 10, ["false", "true"]]


@needs_node
def test_of_two_loads_of_the_same_the_later_one_counts() -> None:
    deeds = f"""const fast = globalThis.fetch; let num = 0;
      globalThis.fetch = async (path) => {{
        if (num++ > 0) return fast(path);
        await settle();
        return {{ ok: false, status: 502 }};
      }};
      const drawn = graph({BOTH}); buttons[0].listeners.click(); await settle(); await settle(); await settle();
      answer = [drawn.root && drawn.root.total, parts[".found"].textContent];"""
    assert told(deeds) == [2500, ""]


def test_the_switch_is_a_named_group_of_two_buttons() -> None:
    assert 'role="group" aria-label="Which samples"' in HTML
    assert HTML.count("data-what=") == 2
