"""The start of a run as a picture of boxes: phases of each process on one time axis, and what the run hung on."""

from collections.abc import Iterable
from html import escape
from typing import Any

from vllm_obs.dashboard.drawing import Part, legend
from vllm_obs.dashboard.figures import seconds
from vllm_obs.dashboard.palette import LEVEL_COLOURS, STAGE_COLOURS, TOKEN_COLOURS
from vllm_obs.dashboard.process_facts import name_of

NS = 1e9
LANE = 17
ROOM = 150
"""So many letters fit on the whole axis."""
MIN_GAP_SECONDS = 0.001
GAP = "repeating-linear-gradient(135deg,#8888 0 2px,transparent 2px 6px)"
KINDS = {
    "wait": ("waits for another process", STAGE_COLOURS["queue"]),
    "import": ("imports", TOKEN_COLOURS["cached"]),
    "load": ("loads and sizes", STAGE_COLOURS["decode"]),
    "start": ("starts its interpreter", STAGE_COLOURS["submit"]),
    "other": ("other", STAGE_COLOURS["tokenize"]),
}
"""Kind of a phase → what it does, and its colour; red waits."""
_WORDS = {"load": "load", "pack": "load", "open": "load", "kv": "load", "warm-up": "load", "import": "import",
          "imports": "import", "wait": "wait"}  # fmt: skip

STYLE = f"""<style>
.start {{ font-size:0.8rem; font-variant-numeric:tabular-nums; }}
.start .row {{ display:grid; grid-template-columns:190px minmax(0,1fr); gap:10px; padding:5px 0;
  border-top:1px solid #8883; }}
.start .who {{ line-height:1.35; }}
.start .who small {{ opacity:.72; display:block; }}
.start .track, .start .axis {{ position:relative; }}
.start .track div {{ position:absolute; box-sizing:border-box; border-radius:2px; overflow:hidden;
  white-space:nowrap; font-size:11px; line-height:{LANE - 2}px; padding-left:4px; color:#fff; }}
.start .track .gap {{ background:{GAP}; color:inherit; }}
.start .track .path {{ background:currentColor; color:inherit; border-radius:0; }}
.start .track .ready {{ background:{LEVEL_COLOURS["good"]}; border-radius:0; padding:0; width:2px; top:-5px;
  bottom:-6px; }}
.start .axis {{ height:18px; opacity:.75; }}
.start .axis span {{ position:absolute; transform:translateX(-50%); white-space:nowrap; }}
.start .axis span:first-child {{ transform:none; }}
.start .axis span:last-child {{ transform:translateX(-100%); }}
</style>"""

Row = dict[str, Any]
Span = tuple[int, int]


def picture(view: Row) -> str:
    """HTML of the run's own start, and below it of each process that was started later, on an axis of its own."""
    first = [process for process in view["processes"] if not process["is_later"]]
    later = [process for process in view["processes"] if process["is_later"]]
    drawn = [_chart(first, view["run"]["critical_path"], view["run"]["ready_at"])] if first else []
    drawn += [
        f"<div style='margin-top:12px'><b>{escape(name_of(process['role']))} was started later</b></div>"
        + _chart([process], [], None)
        for process in later
    ]
    return f'{STYLE}<div class="start" role="img" aria-label="{escape(view["says"])}">{"".join(drawn)}</div>'


def key_html() -> str:
    """What the colours mean."""
    parts = [Part(kind, 0, colour, words) for kind, (words, colour) in KINDS.items()]
    more = (
        '<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:18px;'
        'height:4px;margin:0 5px 3px 0;background:currentColor"></span>being ready hung on this</span>'
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:14px;height:10px;'
        f'margin-right:5px;background:{GAP}"></span>gap: nothing explains it</span>'
        '<span style="white-space:nowrap;margin-left:14px"><span style="display:inline-block;width:2px;'
        f'height:12px;margin-right:6px;background:{LEVEL_COLOURS["good"]}"></span>requests were let in</span>'
    )
    return f'<div style="display:flex;flex-wrap:wrap;font-size:0.86em">{legend(parts)}<div>{more}</div></div>'


def kind_of_phase(phase: str) -> str:
    """One of KINDS."""
    return "start" if phase == "start process" else _WORDS.get(phase.partition(" ")[0], "other")


def _chart(processes: list[Row], path: Iterable[Row], ready_at: int | None) -> str:
    begin = min(process["begun_at"] for process in processes)
    end = max(int(process["begun_at"] + process["seconds"] * NS) for process in processes)
    over, segments = (begin, max(begin + 1, end)), list(path)
    mark = _ready(ready_at, over) if ready_at is not None else ""
    rows = "".join(_row(process, segments, over, mark) for process in processes)
    return f'<div class="row" style="border:none"><div></div>{_axis(over)}</div>{rows}'


def _axis(over: Span) -> str:
    length = (over[1] - over[0]) / NS
    marks = "".join(
        f'<span style="left:{100 * part:.1f}%">{seconds(part * length)}</span>' for part in (0, 0.25, 0.5, 0.75, 1)
    )
    return f'<div class="axis">{marks}</div>'


def _row(process: Row, segments: Iterable[Row], over: Span, mark: str) -> str:
    depth = max((phase["depth"] for phase in process["phases"]), default=0)
    lanes = [_phase(phase, over) for phase in process["phases"]]
    lanes += [_gap(gap, over) for gap in process["gaps"] if gap["seconds"] >= MIN_GAP_SECONDS]
    lanes += [_path(segment, over) for segment in segments if segment["pid"] == process["pid"]]
    height = 6 + (depth + 1) * LANE
    return (
        f'<div class="row"><div class="who"><b>{escape(name_of(process["role"]))}</b><small>{_words(process)}'
        f'</small></div><div class="track" style="height:{height}px">{"".join(lanes)}{mark}</div></div>'
    )


def _words(process: Row) -> str:
    if process["ready_at"]:
        return f"ready after {seconds(process['seconds'])}"
    return "never ready" if process["state"] == "exited" else f"not ready after {seconds(process['seconds'])}"


def _phase(phase: Row, over: Span) -> str:
    cpu = f", {seconds(phase['cpu_seconds'])} of CPU" if phase["cpu_seconds"] >= 0.005 else ""
    read = f", {phase['num_read_bytes'] / 1e6:.0f} MB from storage" if phase["num_read_bytes"] >= 1e6 else ""
    words = f"{phase['phase']}: {seconds(phase['seconds'])}{cpu}{read}"
    place = f"{_place(phase, over)};top:{6 + phase['depth'] * LANE}px;height:{LANE - 2}px"
    room = ROOM * (phase["ended_at"] - phase["begun_at"]) / (over[1] - over[0])
    label = escape(phase["phase"]) if len(phase["phase"]) <= room else ""
    colour = KINDS[kind_of_phase(phase["phase"])][1]
    return f'<div title="{escape(words)}" style="{place};background:{colour}">{label}</div>'


def _ready(ready_at: int, over: Span) -> str:
    place = 100 * (ready_at - over[0]) / (over[1] - over[0])
    return f'<div class="ready" title="requests were let in" style="left:{place:.3f}%"></div>'


def _gap(gap: Row, over: Span) -> str:
    words = f"nothing explains {seconds(gap['seconds'])}"
    return f'<div class="gap" title="{words}" style="{_place(gap, over)};top:6px;height:{LANE - 2}px"></div>'


def _path(segment: Row, over: Span) -> str:
    words = escape(f"being ready hung on {segment['phase']} for {seconds(segment['seconds'])}")
    return f'<div class="path" title="{words}" style="{_place(segment, over)};top:0;height:4px"></div>'


def _place(span: Row, over: Span) -> str:
    length = over[1] - over[0]
    left, width = (span["begun_at"] - over[0]) / length, (span["ended_at"] - span["begun_at"]) / length
    return f"left:{100 * left:.3f}%;width:max(1px,{100 * width:.3f}%)"
