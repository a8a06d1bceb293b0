"""The step stream's script agrees with the rest about words and colours, and its ring keeps and cuts rightly."""

import json
import shutil
import subprocess
from importlib import resources
from typing import Any

import pytest

from vllm_obs.dashboard.canvas.step_stream import HTML, PARTS
from vllm_obs.dashboard.palette import BLOCK_COLOURS, PHASE_COLOURS, TOKEN_COLOURS

NODE = shutil.which("node")
SECONDS = 30
SCRIPTS = ("stream", *PARTS, "step_stream")

needs_node = pytest.mark.skipif(NODE is None, reason="needs node, to run the script without a browser")

PRELUDE = """
const ring = new StepRing(1000);
const row = (n, begun, rows = [], more = {}) => {
  const made = [n, begun, begun + 1e6, begun + 8e6, begun + 8e6, begun + 9e6, 1, 2, "kv_blocks", "kv_blocks", 3, 4,
    5, 0, 1.5, begun + 3e6, begun + 6e6, begun + 7e6, "", rows, begun + 2e6, begun + 7.5e6];
  for (const [at, value] of Object.entries(more)) made[at] = value;
  return made;
};
"""
"""A ring, and steps of 9 ms: schedule 1, ipc 1, prepare 1, forward 3, unknown 1, sample .5, ipc .5, update 1."""


def script(*names: str) -> str:
    folder = resources.files("vllm_obs.dashboard.canvas")
    return "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in names)


def told(deeds: str, *more: str) -> Any:
    """What `answer` is after these deeds to a fresh ring."""
    assert NODE is not None
    scripts = script("stream", *PARTS, *more).replace("export default function", "function mount")
    code = f"{scripts}\n{PRELUDE}\nlet answer;\n{deeds}\nconsole.log(JSON.stringify(answer));"
    done = subprocess.run([NODE, "-e", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def quoted_list(code: str, name: str) -> list[str]:
    """The texts of a list constant."""
    line = next(line for line in code.splitlines() if line.startswith(f"const {name} = ["))
    found: list[str] = json.loads(line[line.index("[") : line.index("]") + 1])
    return found


def test_phases_and_kinds_are_those_of_the_palette() -> None:
    code = script("step_ring")
    assert quoted_list(code, "PHASES") == list(PHASE_COLOURS)
    assert [*quoted_list(code, "KINDS"), "cached"] == list(TOKEN_COLOURS)


def test_legend_has_every_fixed_colour() -> None:
    for name, colour in PHASE_COLOURS.items():
        assert f'<i style="background: {colour}"></i>{name}</span>' in HTML
    for colour in (TOKEN_COLOURS["recompute"], BLOCK_COLOURS["cached"], BLOCK_COLOURS["free"]):
        assert colour in HTML


def test_script_exports_one_component_and_puts_no_text_into_html() -> None:
    code = script(*SCRIPTS)
    assert code.count("export default") == 1
    assert "innerHTML" not in code
    assert "insertAdjacentHTML" not in code


@needs_node
def test_phases_of_a_step_add_up_to_its_length() -> None:
    deeds = "ring.add(row(1, 0)); answer = [[...ring.first.phases], ring.first.end - ring.first.begin];"
    assert told(deeds) == [[1, 1.5, 1, 3, 0.5, 1, 1], 9]


@needs_node
def test_what_no_rank_recorded_is_unknown_and_what_did_not_answer_only_scheduled() -> None:
    deeds = """
    ring.add(row(1, 0, [], {15: null, 16: null, 17: null, 20: null, 21: null}));
    ring.add(row(2, 1e7, [], {3: null, 4: null, 5: null}));
    answer = ring.steps.map((step) => [...step.phases]);
    """
    phases = told(deeds)
    assert sum(phases[0]) == 9
    assert (phases[0][0], phases[0][5]) == (1, 1)
    assert phases[1] == [1, 0, 0, 0, 0, 0, 0]


@needs_node
def test_rows_keep_kind_tokens_and_name_over_connections() -> None:
    deeds = """
    ring.name({"7": "a"});
    ring.add(row(1, 0, [7, 0, 50, 16]));
    ring.forgetNames();
    ring.name({"7": "b", "1": "a"});
    ring.add(row(2, 1e7, [1, 1, 1, 0, 7, 2, 30, 0, 9, 0, 5, 0]));
    const read = (step) => Array.from({length: step.num}, (_, at) => {
      const word = step.rows[2 * at + 1];
      return [ring.nameById.get(step.rows[2 * at]) ?? null, word >>> TOKEN_BITS, word & TOKEN_MASK];
    });
    answer = [ring.steps.map(read), ring.first.cached, ring.last.kinds, ring.last.total];
    """
    assert told(deeds) == [
        [[["a", 0, 50]], [["a", 1, 1], ["b", 2, 30], [None, 0, 5]]],
        [[0, 16]],
        [5, 1, 30],
        36,
    ]


@needs_node
def test_a_late_step_takes_its_place_and_one_told_twice_is_there_once() -> None:
    deeds = (
        "for (const n of [1, 3, 2, 3, 5]) ring.add(row(n, n * 1e7)); answer = ring.steps.map((step) => step.n);"
    )
    assert told(deeds) == [1, 2, 3, 5]


@needs_node
def test_lost_steps_are_a_gap_before_the_next_but_not_before_the_first() -> None:
    deeds = """
    ring.lost(40); ring.add(row(41, 0)); ring.lost(3); ring.lost(2); ring.add(row(47, 1e8));
    ring.add(row(48, 2e8));
    answer = ring.steps.map((step) => step.numLostBefore);
    """
    assert told(deeds) == [0, 5, 0]


@needs_node
def test_ring_and_its_names_are_bounded() -> None:
    deeds = """
    let most = 0, names = 0;
    for (let n = 1; n <= 9000; n++) {
      if (n % 100 === 0) ring.forgetNames();
      ring.name({[n]: `r${n}`});
      ring.add(row(n, n * 1e7, [n, 1, 1, 0]));
      most = Math.max(most, ring.length); names = Math.max(names, ring.nameById.size);
    }
    answer = [most <= 1512, names <= 4000, ring.numEvicted + ring.length, ring.indexOf(9000) === ring.length - 1,
      ring.indexOf(1), ring.nameById.size === ring.idByName.size];
    """
    assert told(deeds) == [True, True, 9000, True, -1, True]


@needs_node
def test_step_at_a_moment_is_found() -> None:
    deeds = """
    for (let n = 1; n <= 5; n++) ring.add(row(n, n * 1e7));
    const { begin, end } = ring.steps[2];
    answer = [ring.indexAt(-1), ring.indexAt(begin + 1), ring.indexAt(end), ring.indexAt(1e9)];
    """
    assert told(deeds) == [0, 2, 3, 5]


@needs_node
def test_a_scale_changes_only_when_it_no_longer_fits() -> None:
    deeds = "answer = [steady(0, 7), steady(10, 9), steady(10, 11), steady(10, 5), steady(10, 4), roundUp(0.3)];"
    assert told(deeds) == [10, 10, 20, 10, 5, 0.5]


@needs_node
def test_a_step_in_words_has_its_facts() -> None:
    deeds = """
    ring.name({"7": "a"});
    ring.add(row(4, 0, [7, 0, 50, 16, 7, 1, 1, 0], {13: 1, 18: "boom"}));
    const say = {reason: {kv_blocks: "too few blocks"}, limit: {}};
    answer = stepLines(ring.first, {max_num_batched_tokens: 512}, say, (ms) => ms, cellWords("a", 0, 50)).slice(1);
    """
    assert told(deeds) == [
        "▸ a: 50 tokens prefill",
        "2 requests, 51 of 512 tokens",
        "50 prefill tokens, 1 decode token, 16 tokens found in the prefix cache",
        "schedule 1.00 ms · ipc 1.50 ms · prepare 1.00 ms · forward 3.00 ms · sample 500 µs · update 1.00 ms · "
        "unknown 1.00 ms",
        "1.50 times the least such work ever took",
        "1 running, 2 waiting: too few blocks",
        "limit: kv_blocks",
        "KV blocks: 3 active, 4 cached, 5 free",
        "1 request preempted",
        "failed: boom",
    ]


OPEN = """
const stream = Object.create(StepStream.prototype);
Object.assign(stream, {ring, engine: {is_live: true}, heard() {}, heardAt: 1e15,
  health: {word: "", age: null, at: 0}, underWay: null});
ring.ms(0);
stream.serverNow = () => 6200;
const state = (word, under) => stream.onState({state: word, age_seconds: 1, under_way: under});
const under = (n, begun) => ({step: n, begun_at: begun * 1e6, num_requests: 4, num_running: 4, num_waiting: 11,
  num_active: 5, num_cached: 3, num_free: 2});
const words = () => { const open = stream.openStep(); return open && [openWords(open), levelWords(open)]; };
"""
"""A view of a live engine, 6.2 s after its first moment."""


@needs_node
def test_a_step_that_takes_long_is_under_way_and_one_in_a_stall_has_not_answered() -> None:
    deeds = f"""{OPEN}
    ring.add(row(4, 0));
    answer = [];
    for (const [word, n, begun] of [["live", 5, 5300], ["live", 5, 4800], ["stalled", 5, 1000], ["dead", 5, 1000],
        ["ended", 5, 1000], ["live", 4, 1000]]) {{ state(word, under(n, begun)); answer.push(words()); }}
    """
    levels = "4 running, 11 waiting"
    assert told(deeds) == [
        None,
        ["step 5 under way for 1.4 s", levels],
        ["step 5 has not answered for 5.2 s: stands still", levels],
        None,
        None,
        None,
    ]


@needs_node
def test_an_engine_that_stands_still_between_steps_is_not_idle() -> None:
    deeds = f"""{OPEN}
    ring.add(row(4, 1e9));
    state("live", null);
    answer = [words()];
    state("stalled", null);
    answer.push(words(), openLines(stream.openStep(), (ms) => ms).slice(2));
    """
    assert told(deeds) == [
        None,
        ["no step for 5.2 s: the engine stands still", "1 running, 2 waiting"],
        ["1 running, 2 waiting", "KV blocks: 3 active, 4 cached, 5 free"],
    ]


@needs_node
def test_a_step_under_way_is_over_as_soon_as_it_is_told() -> None:
    deeds = f"""{OPEN}
    state("live", under(5, 1000));
    answer = [stream.openStep().n];
    ring.add(row(5, 1e9));
    answer.push(words());
    """
    assert told(deeds) == [5, None]


@needs_node
def test_a_step_under_way_has_a_column_by_step_and_the_pill_and_the_label_say_so() -> None:
    deeds = f"""{OPEN}
    ring.add(row(4, 0));
    Object.assign(stream, {{axis: "step", trouble: "", isLive: true, selected: null, numLost: 0, most: 1, lag: 250,
      data: {{engine: "0", words: {{reason: {{}}, limit: {{}}}}}}, showState() {{}}, showBar() {{}},
      canvas: {{setAttribute: (name, words) => {{ answer.push(words.split(". since")[0]); }}}}}});
    answer = [stream.liveEdge()];
    state("stalled", under(5, 1000));
    answer.push(stream.liveEdge(), stream.stateWords());
    stream.speak();
    """
    assert told(deeds, "step_stream") == [
        1,
        2,
        ["stands still for 5.2 s in step 5", "bad"],
        "Step stream of engine 0: stands still for 5.2 s in step 5, follows what happens. "
        "Step 5 has not answered for 5.2 s: stands still",
    ]
