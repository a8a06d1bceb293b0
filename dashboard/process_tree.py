"""The process tree as HTML: API servers, the Observer beside, engines below, their ranks below those."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from vllm_obs.dashboard.figures import NOTHING, seconds
from vllm_obs.dashboard.palette import LEVEL_COLOURS
from vllm_obs.dashboard.process_card import STYLE as CARD_STYLE
from vllm_obs.dashboard.process_card import card
from vllm_obs.dashboard.process_edges import output_words, plan_words, rank_words, request_words
from vllm_obs.dashboard.process_facts import (
    ENDED,
    Condition,
    Tree,
    condition,
    engine_of,
    how_ended,
    name_of,
    rank_of,
)

MAX_ENDED = 20

Row = dict[str, Any]
Draw = Callable[[Row], str]

STYLE = f"""<style>{CARD_STYLE}
.ptree {{ --line:#8889; }}
.ptree .top {{ display:grid; gap:10px; grid-template-columns:repeat(auto-fill, minmax(290px, 360px)); }}
.ptree .beside {{ display:grid; gap:10px; }}
.ptree .below {{ display:grid; grid-template-columns:minmax(0,1fr) minmax(230px,300px); column-gap:18px; }}
.ptree .wire {{ margin-left:26px; border-left:2px solid var(--line); padding:7px 0 7px 16px; font-size:0.84rem;
  line-height:1.55; font-variant-numeric:tabular-nums; min-height:34px; }}
.ptree .watch {{ margin-left:-18px; border-top:2px dashed var(--line); border-right:2px dashed var(--line);
  width:60px; height:20px; margin-top:11px; }}
.ptree .arm {{ position:relative; }}
.ptree .arm::before {{ content:""; position:absolute; left:26px; right:0; top:11px;
  border-top:2px dashed var(--line); }}
.ptree .engine > .wire:first-child {{ padding-top:20px; }}
.ptree .engines {{ display:grid; gap:18px; grid-template-columns:repeat(auto-fit, minmax(300px, 1fr)); }}
.ptree .core {{ max-width:360px; }}
.ptree .ranks {{ display:grid; gap:10px; grid-template-columns:repeat(auto-fill, minmax(240px, 1fr));
  border-top:2px solid var(--line); padding-top:0; }}
.ptree .rank .wire {{ min-height:0; padding:4px 0 5px 12px; font-size:0.78rem; white-space:nowrap;
  overflow:hidden; text-overflow:ellipsis; }}
.ptree .slow {{ color:{LEVEL_COLOURS["bad"]}; font-weight:600; }}
.pended {{ font-size:0.86rem; margin-top:14px; font-variant-numeric:tabular-nums; }}
.pended td {{ padding:1px 18px 1px 0; border:none; }}
.pended table {{ border-collapse:collapse; }}
</style>"""


def tree_html(tree: Tree, stalls: Sequence[Row], edges: Row, limit_bytes: int | None) -> str:
    """All of it; what stands between cards is what lies between their processes."""

    def draw(row: Row) -> str:
        return card(row, condition(row, stalls), limit_bytes)

    engines = "".join(_engine(core, workers, edges, draw) for core, workers in tree.engines)
    ranks = "".join(_ranks(workers, edges, draw) for _, workers in tree.engines)
    none_yet = f'<div class="wire">{NOTHING} no engine has started yet</div>'
    watch = '<div class="watch" title="It reads what all others record"></div>' if tree.beside else ""
    above = '<div class="wire">owns the port, and starts and restarts all below</div>' if tree.roots else ""
    return (
        f'{STYLE}<div class="ptree" role="tree" aria-label="Processes of this run">'
        f'<div class="top">{"".join(map(draw, tree.roots))}</div>{above}'
        f'<div class="top">{"".join(map(draw, tree.servers))}</div>'
        f'<div class="below"><div class="{"arm" if tree.beside else ""}">'
        f'<div class="engines">{engines or none_yet}</div></div>'
        f'<div>{watch}<div class="beside">{"".join(map(draw, tree.beside))}</div></div></div>{ranks}</div>'
    )


def alarm(tree: Tree, stalls: Sequence[Row]) -> tuple[str, list[str]]:
    """A sentence of how all are, and one for each that is not well."""
    rows = _rows(tree)
    found = [(row, condition(row, stalls)) for row in rows]
    ill = [(row, state) for row, state in found if state.level == "bad"]
    ill = ill or [(row, state) for row, state in found if state.level == "warning"]
    told = [f"{name_of(row['role'])} (pid {row['pid']}): {state.words}." for row, state in ill]
    running = sum(row["state"] not in ENDED for row in rows)
    if not running:
        return "No process of this run lives any more.", told
    is_are = "is" if len(ill) == 1 else "are"
    return (_well(running, found) if not ill else f"{len(ill)} of {len(rows)} processes {is_are} not well."), told


def _well(running: int, found: list[tuple[Row, Condition]]) -> str:
    starting = sum(row["state"] == "starting" for row, _ in found)
    noun = "process" if running == 1 else "processes"
    return f"{running} {noun}, {f'{starting} of them not ready yet' if starting else 'all well'}."


def _rows(tree: Tree) -> list[Row]:
    cores = [core for core, _ in tree.engines if core is not None]
    return [
        *tree.roots,
        *tree.servers,
        *cores,
        *(row for _, workers in tree.engines for row in workers),
        *tree.beside,
    ]


def _engine(core: Row | None, workers: list[Row], edges: Row, draw: Draw) -> str:
    label = engine_of((core or workers[0])["role"])
    requests, is_slow = request_words(edges, label)
    slow = ' class="slow"' if is_slow else ""
    wire = (
        f'<div class="wire"><div{slow}>↓ requests: {escape(requests)}</div>'
        f"<div>↑ outputs: {escape(output_words(edges, label))}</div></div>"
    )
    middle = draw(core) if core is not None else f'<div class="wire">{NOTHING}</div>'
    return f'<div class="engine">{wire}<div class="core">{middle}</div></div>'


def _ranks(workers: list[Row], edges: Row, draw: Draw) -> str:
    if not workers:
        return ""
    label = engine_of(workers[0]["role"])
    roles = [row["role"] for row in workers]
    wires = [_rank_wire(label, rank_of(role, roles), edges) for role in roles]
    each = "".join(f'<div class="rank">{wire}{draw(row)}</div>' for wire, row in zip(wires, workers, strict=True))
    plans = f'<div class="wire">↓ engine {escape(label)}: {escape(plan_words(edges, label))}</div>'
    return f'{plans}<div class="ranks" role="group">{each}</div>'


def _rank_wire(label: str, rank: int | None, edges: Row) -> str:
    down, up = rank_words(edges, label, rank)
    return f'<div class="wire"><div>↓ {escape(down)}</div><div>↑ {escape(up)}</div></div>'


def ended_html(tree: Tree) -> str:
    """Those that ended, newest first, with how."""
    if not tree.ended:
        return '<div class="pended">No process of this run has ended.</div>'
    rows = "".join(
        f"<tr><td>{escape(name_of(row['role']))}</td><td>pid {row['pid']}</td><td>{escape(how_ended(row))}</td>"
        f"<td>after {seconds(row['uptime_seconds'])}</td></tr>"
        for row in tree.ended[:MAX_ENDED]
    )
    more = f"<div>and {len(tree.ended) - MAX_ENDED} before</div>" if len(tree.ended) > MAX_ENDED else ""
    return f'<div class="pended"><b>Ended</b><table>{rows}</table>{more}</div>'
