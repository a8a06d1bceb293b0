"""The block map's script keeps blocks as they are told, lays them out and colours them; its legend has it all."""

import json
import shutil
import subprocess
from base64 import b64encode
from importlib import resources
from typing import Any

import pytest

from vllm_obs.dashboard.canvas.block_map import HTML, MODES, PARTS
from vllm_obs.dashboard.canvas.component import COLOURS
from vllm_obs.dashboard.palette import BLOCK_COLOURS

NODE = shutil.which("node")
SECONDS = 30

needs_node = pytest.mark.skipif(NODE is None, reason="needs node, to run the script without a browser")


def script(*names: str) -> str:
    folder = resources.files("vllm_obs.dashboard.canvas")
    return "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in names)


def numbers(*values: int) -> str:
    return b64encode(b"".join(value.to_bytes(4, "little") for value in values)).decode()


def block_map(
    step: int, states: bytes, refs: bytes, owners: tuple[int, ...], names: dict[int, str]
) -> dict[str, Any]:
    """The Observer's document of so many blocks, of which each was changed in `step`."""
    return {
        "engine": "0", "pid": 9, "step": step, "first_step": 2, "last_step": step, "num_blocks": len(states),
        "is_exact": True, "states": b64encode(states).decode(), "refs": b64encode(refs).decode(),
        "owners": numbers(*owners), "changed_step": numbers(*[step] * len(states)), "names": names,
        "levels": {"num_active": states.count(2), "num_cached": states.count(1), "num_free": states.count(0)},
    }  # fmt: skip


FIRST = block_map(5, b"\x02\x02\x01\x00", b"\x02\x01\x00\x00", (7, 8, 0, 0), {7: "a-0", 8: "b-0"})
THEME = {"background": "#ffffff", "text": "#101010"}


def told(deeds: str) -> Any:
    """What `answer` is after these deeds to a store that holds FIRST."""
    assert NODE is not None
    prelude = (
        f"const store = new BlockStore(); const FIRST = {json.dumps(FIRST)}; store.replace(FIRST, 1000);"
        f"const ink = new BlockInk({json.dumps(COLOURS)}, {json.dumps(THEME)}); ink.name(store.names);"
    )
    code = f"{script('stream', *PARTS)}\n{prelude}\nlet answer;\n{deeds}\nconsole.log(JSON.stringify(answer));"
    done = subprocess.run([NODE, "-e", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_script_exports_one_component_and_puts_no_text_into_html() -> None:
    code = script("stream", *PARTS, "block_map")
    assert code.count("export default") == 1
    assert "innerHTML" not in code
    assert "insertAdjacentHTML" not in code


def test_every_way_of_colouring_has_its_button_and_its_legend() -> None:
    for mode, word in MODES.items():
        assert f'<button data-mode="{mode}"' in HTML
        assert f">{word}</button>" in HTML
        assert f'<span data-legend="{mode}" hidden>' in HTML
    assert f"const MODES = {json.dumps(list(MODES))};" in script("block_ink")
    assert all(colour in HTML for colour in BLOCK_COLOURS.values())


@needs_node
def test_map_is_read_and_what_is_there_first_does_not_flash() -> None:
    read = (
        "[...store.states], [...store.refs], [...store.changed], store.nameOf(0), store.nameOf(3), "
        "store.flashing.size"
    )
    assert told(f"answer = [{read}];") == [[2, 2, 1, 0], [2, 1, 0, 0], [5, 5, 5, 5], "a-0", "", 0]
    assert told("answer = [store.step, store.firstStep, store.lastStep, store.levels];") == [
        5,
        2,
        5,
        FIRST["levels"],
    ]


@needs_node
def test_changes_are_applied_and_flash_by_their_kind() -> None:
    deeds = """
    store.apply({step: 6, ids: [1, 0, 3], states: [2, 1, 2], refs: [2, 0, 1], owners: [8, 0, 9], names: {9: "c-0"},
      levels: FIRST.levels, is_exact: false}, 2000);
    answer = [[...store.states], [...store.refs], [...store.changed], store.nameOf(3), [...store.flashKind],
      store.isExact];
    """
    shared, given_back, taken = 3, 2, 1
    assert told(deeds) == [[1, 2, 1, 2], [0, 2, 0, 1], [6, 6, 5, 6], "c-0", [given_back, shared, 0, taken], False]


@needs_node
def test_next_map_flashes_where_it_differs_though_its_numbers_are_others() -> None:
    later = block_map(6, b"\x02\x02\x01\x02", b"\x02\x01\x00\x01", (1, 2, 0, 2), {1: "a-0", 2: "other-0"})
    kinds = told(f"store.replace({json.dumps(later)}, 2000); answer = [...store.flashKind];")
    assert kinds == [0, 1, 0, 1], "block 0 is held by the same request, block 1 by another, block 3 was free"
    other = {**later, "pid": 10}
    assert told(f"store.replace({json.dumps(other)}, 2000); answer = [...store.flashKind];") == [0, 0, 0, 0]


@needs_node
def test_names_of_those_who_hold_nothing_are_not_kept_for_ever() -> None:
    deeds = """
    for (let n = 100; n < 6000; n++) store.apply({step: 6, ids: [3], states: [2], refs: [1], owners: [n],
      names: {[n]: "r" + n}, levels: FIRST.levels, is_exact: true}, 2000);
    answer = [store.names.size < 4 * 4 + 4096 + 1, store.nameOf(3), store.nameOf(0)];
    """
    assert told(deeds) == [True, "r5999", "a-0"]


@needs_node
@pytest.mark.parametrize(("num", "least", "most"), [(512, 25, 40), (11650, 6, 8), (100_000, 2, 3)])
def test_cells_fill_the_width_and_are_as_large_as_there_is_room(num: int, least: int, most: int) -> None:
    columns, rows, unit, last = told(
        f"const plan = new BlockPlan(); plan.fit({num}, 1260, 400);"
        f"const last = plan.cell({num} - 1);"
        "answer = [plan.columns, plan.rows, plan.unit, plan.at(last.x + 0.5, last.y + 0.5)];"
    )
    assert columns * unit == pytest.approx(1260)
    assert columns * rows >= num > columns * (rows - 1)
    assert rows * unit <= 400
    assert least <= unit <= most
    assert last == num - 1


@needs_node
def test_zoom_keeps_what_is_under_the_pointer_and_stays_within_the_map() -> None:
    deeds = """
    const plan = new BlockPlan(); plan.fit(100000, 1260, 400);
    const before = plan.at(600, 200); plan.zoomAt(8, 600, 200); const after = plan.at(600, 200);
    plan.move(-50, -50); const first = plan.at(1, 1); plan.move(1e6, 1e6); const right = plan.left + plan.across;
    plan.zoomAt(0, 0, 0);
    const outside = plan.at(5000, 1);
    answer = [after - before, first, Math.round(right - plan.columns), plan.zoom, plan.at(1, 1), outside];
    """
    assert told(deeds) == [0, 0, 0, 1, 0, None]


@needs_node
def test_colours_are_those_of_the_palette_and_of_the_holders_name() -> None:
    deeds = """
    const byte = (pixel, by) => ((pixel >>> by) & 255).toString(16).padStart(2, "0");
    const hex = (pixel) => "#" + [0, 8, 16].map((by) => byte(pixel, by)).join("");
    const hue = COLOURS.request[hueOf("a-0", COLOURS.request.length)];
    answer = [hex(ink.pixel(store, 0, "state", 0)), hex(ink.pixel(store, 0, "owner", 0)) === hue,
      hex(ink.pixel(store, 0, "refs", 0)), hex(ink.pixel(store, 1, "refs", 0)), hex(ink.pixel(store, 0, "age", 0)),
      ink.pixel(store, 0, "state", 1) !== ink.pixel(store, 0, "state", 0)];
    """
    colours = f"const COLOURS = {json.dumps(COLOURS)};"
    assert told(colours + deeds) == [BLOCK_COLOURS["active"], True, "#3b82f6", "#7db4f5", "#f08c00", True]


@needs_node
def test_block_is_told_in_words() -> None:
    details = {
        "block_id": 0, "state": "active", "hash": "00ff", "made_by": "m-0", "made_step": 3, "num_holders": 2,
        "holders": [{"request_id": "a-0", "place": 0}, {"request_id": "b-0", "place": 4}],
    }  # fmt: skip
    assert told(f"answer = blockLines(store, 0, {json.dumps(details)});") == [
        "Block 0: active, 2 references",
        "first holder a-0",
        "changed at step 5, the newest",
        "there it is block 1",
        "in b-0 it is block 5",
        "hash 00ff, made by m-0 in step 3",
    ]
    assert told("answer = blockLines(store, 2, null);") == ["Block 2: cached", "changed at step 5, the newest"]


@needs_node
def test_table_of_the_followed_request_is_of_this_engine_and_knows_how_full_its_last_block_is() -> None:
    row = {
        "request_id": "a-0", "engine": "0", "block_ids": [0, 1], "num_tokens": 20, "num_refs": [2, 1],
        "hashes": ["00", ""], "others": [[0], []], "sharers": ["b-0"], "is_held": True,
        "prefix": {"num_hit_blocks": 1, "makers": [{"request_id": "m-0", "first_block": 0, "num_blocks": 1}]},
    }  # fmt: skip
    found = {"sequences": [{"request_id": "a-1", "engine": "0", "block_ids": None}, row]}
    deeds = f"""
    const table = tableOf("a", {json.dumps(found)}, {{engine: "0", block_size: 16}});
    answer = [table.name, table.ids, table.numHits, table.fill, placeLines(table, 0),
      tableOf("a", {json.dumps(found)}, {{engine: "1", block_size: 16}}).ids];
    """
    assert told(deeds) == [
        "a-0",
        [0, 1],
        1,
        0.25,
        [
            "Block 1 of 2: number 0",
            "found in the prefix cache, made by m-0",
            "2 references: shared with b-0",
            "hash 00",
        ],
        [],
    ]
