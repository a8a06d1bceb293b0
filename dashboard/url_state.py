"""What a page shows is in its address: server, engine, request, step and window; a link shows the same."""

from typing import Literal

import streamlit as st

from vllm_obs.dashboard.source import choose_by, current, servers

Window = Literal["10s", "1m", "5m", "run"]
WINDOWS: tuple[Window, ...] = ("10s", "1m", "5m", "run")
MAX_LENGTH = 512

KEPT = ("server", "engine", "request", "step", "window")
"""What goes along from page to page."""


def text(name: str, default: str = "") -> str:
    """A value of the address; of what another page left behind if this one's has none."""
    value = st.query_params.get(name)
    if value is None:
        return str(st.session_state.get(_key(name), default))
    return value[:MAX_LENGTH]


def number(name: str) -> int | None:
    """A whole number of the address, None where there is none."""
    value = text(name)
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None


def put(**values: str | int | None) -> None:
    """Write into the address, and keep for the next page; None takes a name out."""
    for name, value in values.items():
        if value is None or value == "":
            st.query_params.pop(name, None)
            st.session_state.pop(_key(name), None)
            continue
        if st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)
        if name in KEPT:
            st.session_state[_key(name)] = str(value)


def carry() -> None:
    """Bring what goes along from page to page into this page's address, and the other way round."""
    for name in KEPT:
        if value := text(name):
            put(**{name: value})


def engine() -> str:
    """The engine that is looked at."""
    return text("engine", "0")


def server() -> int | None:
    """The number of the server that is looked at, where there are several; None for the first."""
    chosen = number("server")
    return chosen if chosen is not None and 1 < len(servers()) > chosen else None


def forget_place() -> None:
    """What was looked at is another server's."""
    put(engine=None, request=None, step=None)


def window() -> Window:
    """The length of time that figures are of."""
    value = text("window", "1m")
    return value if value in WINDOWS else "1m"


def paused_step() -> int | None:
    """The step that is looked at; None while the page follows what happens now."""
    return number("step")


def resolve_time() -> None:
    """A link from elsewhere names a time of day (`to`, in ms since 1970): look at the step that ran then."""
    moment = st.query_params.get("to", "")
    for name in ("from", "to"):
        st.query_params.pop(name, None)
    if not (moment.isascii() and moment.isdecimal() and len(moment) < 15):
        return
    reading = current().get("/inspect/step_at", wall_ms=int(moment), engine=engine())
    if reading.is_there:
        put(step=reading.content["step"])


def link(page: str, **values: str | int) -> str:
    """The address of another page of this dashboard with these values, for a Markdown link or a table's column."""
    from urllib.parse import urlencode

    if (chosen := server()) is not None:
        values = {"server": chosen, **values}
    return f"/{page}?{urlencode(values)}" if values else f"/{page}"


def _key(name: str) -> str:
    return f"carried:{name}"


choose_by(server)
