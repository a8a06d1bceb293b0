"""One request told whole: found by an id, a label or a trace, alone or beside another."""

from typing import Any, NamedTuple
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NS, count, number, seconds, size
from vllm_obs.dashboard.frame import code, escape, is_held, note_trouble, teach
from vllm_obs.dashboard.request_compare import difference_panel
from vllm_obs.dashboard.request_facts import facts_panel
from vllm_obs.dashboard.request_list import KEPT_WORDS
from vllm_obs.dashboard.request_rows import Row, refused_table, request_table, time_of_day, wall_offset
from vllm_obs.dashboard.request_story import story_panel
from vllm_obs.dashboard.request_waterfall import waterfall_panel
from vllm_obs.dashboard.source import Reading, current

CHOICE_HEIGHT = 320
MAX_NAME = 256
CLIENT_LEFT = 499
NO_SEQUENCES = f"It was refused before an engine had it, or its sequences are no longer kept. {KEPT_WORDS}"


class Found(NamedTuple):
    """A request of the API: its sequences in their order, and which of them is told of."""

    name: str
    content: Row
    sequences: list[Row]
    chosen: Row


def compare_input() -> None:
    """The way back to the list, and the input of a second request."""
    st.space("xxsmall")
    with st.container(horizontal=True, vertical_alignment="bottom", key="request-ways"):
        st.button("‹ All requests", key="request-back", on_click=_back)
        st.session_state.setdefault("request-with", url_state.text("with"))
        st.text_input("Compare with", max_chars=MAX_NAME, key="request-with", on_change=_compare, width=330,
                      placeholder="id, label or trace of another", label_visibility="collapsed")  # fmt: skip
        st.button("Stop comparing", key="request-alone", disabled=not url_state.text("with"), on_click=_alone)


def request_panel() -> None:
    """Draw the request that the address names."""
    name = url_state.text("request")
    reading = fetched(name)
    note_trouble(reading if reading.is_there or reading.is_gone else Reading({}, 0.0))
    if not reading.is_there:
        _unknown(name, reading)
        return
    content = reading.content
    if content["num_requests"] > 1:
        _choice(content)
        return
    if not content["sequences"]:
        _http_only(content)
        return
    found = chosen_of(name, content)
    _head(found)
    story_panel(found.chosen)
    other = _other()
    lanes = found.sequences if other is None else [found.chosen, other.chosen]
    waterfall_panel(found.chosen, lanes, is_growing=not is_held() and not reading.trouble)
    if other is not None:
        difference_panel(found.chosen, other.chosen)
    facts_panel(found.chosen, content["http"])


def is_changing(name: str) -> bool:
    """Whether there is anything about this request that may still change."""
    reading = fetched(name)
    ended = [row["state"] == "ended" for row in (reading.content or {}).get("sequences", [])]
    return not ended or not all(ended) or not reading.content["http"]


def fetched(name: str) -> Reading:
    """What the Observer knows of this name."""
    return current().get(f"/inspect/requests/{quote(name, safe='')}")


def chosen_of(name: str, content: Row) -> Found:
    """Of several sequences the one that the address says, else the one that ended last."""
    sequences = sorted(content["sequences"], key=lambda row: int(row["sequence_index"]))
    wanted = url_state.number("sequence")
    by_index = {row["sequence_index"]: row for row in sequences}
    chosen = by_index.get(wanted) or max(sequences, key=lambda row: int(row["latency_ns"]))
    return Found(name, content, sequences, chosen)


def _head(found: Found) -> None:
    row, content = found.chosen, found.content
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="request-head"):
        st.badge(escape(row["state"]), color=_state_colour(row))  # type: ignore[arg-type]
        st.markdown(_name_words(row))
    _sequences(found)
    notes = []
    if (step := url_state.paused_step()) is not None:
        notes.append(f"The page is held at step {step}; the request is shown as it is now, with that step marked.")
    if content["num_left_out"]:
        notes.append(f"{count(content['num_left_out'], 'sequence')} more are not shown.")
    if row["is_partial"]:
        notes.append(":orange[Records about it were lost: its times are what is left of them.]")
    st.caption(" ".join([_when_words(row), *notes]))


def _when_words(row: Row) -> str:
    came = f"It came at {time_of_day(row['received_at'], wall_offset())}"
    return f"{came}." if row["state"] == "ended" else f"{came}, and is shown as it is now."


def _state_colour(row: Row) -> str:
    if row["error"] or (row["status"] or 0) >= 400:
        return "red"
    return {"running": "green", "waiting": "orange", "preempted": "red", "submitted": "blue"}.get(
        row["state"], "gray"
    )


def _name_words(row: Row) -> str:
    label = row["external_id"] or row["http_id"] or row["request_id"]
    parts = [f"**{escape(label)}**", code(row["request_id"]), escape(f"{row['operation']} of {row['model']}")]
    if row["engine"]:
        parts.append(f"engine {escape(row['engine'])}")
    if row["stage"]:
        parts.append(
            f"now in **{escape(row['stage'])}**" + (f" ({escape(row['reason'])})" if row["reason"] else "")
        )
    return " · ".join(parts)


def _sequences(found: Found) -> None:
    """Which of its sequences is told of; always the same element."""
    place, row = st.empty(), found.chosen
    if row["num_sequences"] > len(found.sequences) == 1 and row["http_id"]:
        link = url_state.link("requests", request=row["http_id"])
        place.markdown(f"One of {number(row['num_sequences'])} sequences: [show all side by side]({link}).")
    elif len(found.sequences) > 1:
        place.segmented_control(
            "Sequence",
            [each["sequence_index"] for each in found.sequences],
            default=row["sequence_index"],
            required=True,
            key="request-sequence",
            on_change=_choose_sequence,
            format_func=lambda index: f"sequence {index}",
            label_visibility="collapsed",
        )


def _choose_sequence() -> None:
    url_state.put(sequence=st.session_state["request-sequence"])


def _choice(content: Row) -> None:
    """Several requests have this name."""
    name = escape(content["name"])
    st.markdown(f"**{number(content['num_requests'])} requests are known by {name}.** Choose one.")
    if content["sequences"]:
        request_table(content["sequences"], "request-choice", CHOICE_HEIGHT)
    known = {row["http_id"] for row in content["sequences"]}
    others = [row for row in content["http"] if row["http_id"] not in known]
    if content["num_left_out"]:
        st.caption(f"{count(content['num_left_out'], 'sequence')} more are not shown.")
    if others:
        st.markdown(f"Of these only what HTTP says is known. {NO_SEQUENCES}")
        refused_table(others, "refused-choice", CHOICE_HEIGHT // 2)


def _http_only(content: Row) -> None:
    """Only what HTTP says of it is known."""
    row = content["http"][-1]
    took = seconds((row["ended_at"] - row["received_at"]) / NS)
    reason = f" ({escape(row['reason'].replace('_', ' '))})" if row["reason"] else ""
    answer = f"was answered with {row['status']}{reason}"
    what = "Its client left" if row["status"] == CLIENT_LEFT else f"It {answer}"
    asked = code(f"{row['method']} {row['handler']}")
    with st.container(border=True):
        st.markdown(
            f"#### {what} after {took}\n\n{NO_SEQUENCES}\n\n"
            f"It came at {time_of_day(row['received_at'], wall_offset())} · {asked} · "
            f"{size(row['num_request_bytes'])} received · {size(row['num_response_bytes'])} sent"
        )


def _unknown(name: str, reading: Reading) -> None:
    if reading.is_gone:
        return
    teach(
        f"No request is known by “{escape(name)}”.",
        f"It may be too old, or of another run. {KEPT_WORDS} A request is found by our id, the id of its reply, "
        "the client's label (`X-Request-Id`) or its trace id.",
    )


def _other() -> Found | None:
    """The request to compare with; a line says so where there is none of that name."""
    place, name = st.empty(), url_state.text("with")
    if not name:
        return None
    reading = fetched(name)
    if reading.is_there and reading.content["sequences"]:
        sequences: list[Any] = reading.content["sequences"]
        return Found(name, reading.content, sequences, max(sequences, key=lambda row: int(row["latency_ns"])))
    place.warning(f"No request to compare with is known by {escape(name)}.")
    return None


def _back() -> None:
    url_state.put(request=None, sequence=None, **{"with": None})


def _compare() -> None:
    url_state.put(**{"with": st.session_state["request-with"].strip()})


def _alone() -> None:
    st.session_state.pop("request-with", None)
    url_state.put(**{"with": None})
