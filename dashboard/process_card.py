"""A process as a card of HTML: who it is, what it does, how well, and what it takes."""

from html import escape
from typing import Any

from vllm_obs.dashboard.figures import number, seconds, share, size
from vllm_obs.dashboard.palette import LEVEL_COLOURS
from vllm_obs.dashboard.process_facts import ENDED, OLD_SECONDS, RESTING, Condition, activity, name_of, restarts

Row = dict[str, Any]

STYLE = f"""
.pcard {{ border:1px solid #8886; border-left:4px solid var(--level); border-radius:7px; padding:7px 10px 8px;
  font-size:0.82rem; line-height:1.5; font-variant-numeric:tabular-nums; min-width:0; background:#8881; }}
.pcard[data-level=bad] {{ background:{LEVEL_COLOURS["bad"]}26; border-color:{LEVEL_COLOURS["bad"]}; }}
.pcard .head {{ display:flex; justify-content:space-between; gap:8px; }}
.pcard .head b {{ font-size:0.95rem; white-space:nowrap; }}
.pcard .pid, .pcard .key {{ opacity:.72; white-space:nowrap; }}
.pcard .does {{ white-space:nowrap; overflow:hidden; text-overflow:ellipsis; margin-bottom:4px; font-weight:600; }}
.pcard[data-level=bad] .does {{ white-space:normal; }}
.pcard .figures {{ display:grid; grid-template-columns:auto 1fr auto auto; gap:0 8px;
  white-space:nowrap; }}
.pcard .room {{ height:4px; border-radius:2px; background:#8884; margin-top:5px; overflow:hidden; }}
.pcard .room div {{ height:100%; background:currentColor; opacity:.6; }}
"""


def card(row: Row, state: Condition, limit_bytes: int | None) -> str:
    """HTML of one; `limit_bytes` is what all processes may use together, None where that is not known."""
    name, level = name_of(row["role"]), state.level
    does = state.words if level != "good" and state.words else _does(row)
    where = f"pid {row['pid']} on {row['host']}" if row["host"] else f"pid {row['pid']}"
    said = f"{name}, {where}: {does}"
    pairs = "".join(
        f'<span class="key">{key}</span><span{style}>{escape(value)}</span>' for key, value, style in _figures(row)
    )
    return (
        f'<div class="pcard" role="treeitem" data-level="{level}" aria-label="{escape(said)}" '
        f'title="{escape(row["title"] or row["role"])}" style="--level:{LEVEL_COLOURS[level]}">'
        f'<div class="head"><b>{escape(name)}</b><span class="pid">{escape(where)}</span></div>'
        f'<div class="does" title="{escape(does)}">{escape(does[:1].upper() + does[1:])}</div>'
        f'<div class="figures">{pairs}</div>{_room(row, limit_bytes)}</div>'
    )


def _does(row: Row) -> str:
    step = f" · step {number(row['step'])}" if row["step"] else ""
    since = f" for {seconds(row['activity_seconds'])}" if row["activity_seconds"] is not None else ""
    return f"{activity(row)}{since}{step}"


def _figures(row: Row) -> list[tuple[str, str, str]]:
    """Key, value, and the style of the value."""
    is_over = row["state"] in ENDED
    return [
        ("CPU", share(row["cpu_share"]), ""),
        ("heartbeat", seconds(row["heartbeat_age_seconds"]), _heartbeat_style(row)),
        ("memory", size(row["rss_bytes"]), ""),
        ("threads", _counts(row), ""),
        ("ran" if is_over else "up", seconds(row["uptime_seconds"]), ""),
        ("restarts", restarts(row), f' style="color:{LEVEL_COLOURS["warning"]}"' if row["num_starts"] > 1 else ""),
    ]


def _heartbeat_style(row: Row) -> str:
    age = row["heartbeat_age_seconds"]
    if age is None or age <= OLD_SECONDS or row["activity"] in RESTING:
        return ""
    return f' style="color:{LEVEL_COLOURS["bad"]};font-weight:600"'


def _counts(row: Row) -> str:
    return f"{number(row['num_threads'])} · {number(row['num_fds'])} fds"


def _room(row: Row, limit_bytes: int | None) -> str:
    """Its memory against the limit, as a bar."""
    part = min(1.0, (row["rss_bytes"] or 0) / limit_bytes) if limit_bytes else 0.0
    words = f"{size(row['rss_bytes'])} of {size(limit_bytes or None)} that all may use: {share(part)}"
    return f'<div class="room" title="{escape(words)}"><div style="width:{100 * part:.2f}%"></div></div>'
