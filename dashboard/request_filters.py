"""Which requests the list shows: filters that combine, kept in the address, with the inputs that set them."""

from typing import Any, NamedTuple

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.source import current

STATES = {
    "": "all",
    "live": "live",
    "submitted": "submitted",
    "waiting": "waiting",
    "running": "running",
    "preempted": "preempted",
    "ended": "ended",
}
"""The API's filter by state → word on its button."""
ONLY = {"failed": "failed only", "slow": "slow only"}
ROWS_A_PAGE = 200
MAX_TEXT = 128
MAX_ACCOUNT = 64
MAX_SECONDS = 1e9
EVERY_ACCOUNT = "all accounts"


class Filters(NamedTuple):
    """What the address asks for; `cursor` is empty on the first page."""

    state: str
    is_failed: bool
    is_slow: bool
    account: str
    min_seconds: float
    text: str
    cursor: str

    @property
    def is_any(self) -> bool:
        """Whether something is left out."""
        return self._replace(cursor="") != NO_FILTERS

    def query(self) -> dict[str, Any]:
        """The same for the Observer."""
        return {
            "state": self.state or None,
            "failed_only": "true" if self.is_failed else None,
            "slow_only": "true" if self.is_slow else None,
            "account": self.account or None,
            "min_seconds": self.min_seconds or None,
            "text": self.text or None,
            "cursor": self.cursor or None,
            "limit": ROWS_A_PAGE,
        }


NO_FILTERS = Filters("", False, False, "", 0.0, "", "")
NAMES = ("state", "failed", "slow", "account", "min", "text", "cursor")
"""Their names in the address, in the same order."""


def filters_of_address() -> Filters:
    """What the address says; what it says wrongly is left out."""
    state = url_state.text("state")
    return Filters(
        state if state in STATES else "",
        url_state.text("failed") == "1",
        url_state.text("slow") == "1",
        url_state.text("account")[:MAX_ACCOUNT],
        _seconds(url_state.text("min")),
        url_state.text("text")[:MAX_TEXT],
        url_state.text("cursor"),
    )


def filter_inputs() -> None:
    """The inputs; each writes itself into the address, and all begin at the first page again."""
    filters = filters_of_address()
    _begin(filters)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="request-filters"):
        st.segmented_control("State", list(STATES), format_func=STATES.__getitem__, required=True,
                             key="filter-state", on_change=_write, persist_state="page")  # fmt: skip
        st.pills("Only", list(ONLY), format_func=ONLY.__getitem__, selection_mode="multi", key="filter-only",
                 on_change=_write, persist_state="page", help="Slow: the slowest 5 % of the run")  # fmt: skip
        st.selectbox(
            "Account",
            _accounts(filters.account),
            key="filter-account",
            on_change=_write,
            persist_state="page",
            width=140,
        )
        st.number_input("Seconds at least", 0.0, MAX_SECONDS, step=0.5, format="%g", key="filter-min",
                        on_change=_write, persist_state="page", width=150)  # fmt: skip
        st.text_input("Id, label or trace", max_chars=MAX_TEXT, type="search", placeholder="a part of it",
                      key="filter-text", on_change=_write, persist_state="page", width=185)  # fmt: skip
        st.button("Clear", key="filter-clear", disabled=not filters.is_any, on_click=clear)


def clear() -> None:
    """Show all again."""
    url_state.put(**dict.fromkeys(NAMES))
    for name in ("state", "only", "account", "min", "text"):
        st.session_state.pop(f"filter-{name}", None)


def _begin(filters: Filters) -> None:
    """Set the inputs to what the address says, where they are new."""
    only = [name for name, is_on in (("failed", filters.is_failed), ("slow", filters.is_slow)) if is_on]
    for name, value in (
        ("state", filters.state),
        ("only", only),
        ("account", filters.account or EVERY_ACCOUNT),
        ("min", filters.min_seconds),
        ("text", filters.text),
    ):
        st.session_state.setdefault(f"filter-{name}", value)


def _write() -> None:
    given = st.session_state
    account, least = given["filter-account"], given["filter-min"]
    url_state.put(
        state=given["filter-state"],
        failed="1" if "failed" in given["filter-only"] else None,
        slow="1" if "slow" in given["filter-only"] else None,
        account=None if account == EVERY_ACCOUNT else account,
        min=f"{least:g}" if least else None,
        text=given["filter-text"].strip(),
        cursor=None,
    )


def _accounts(chosen: str) -> list[str]:
    """Those that used the server in this run, and the one that is asked for."""
    reading = current().get("/inspect/economics", window="run")
    known = [row["account"] for row in reading.content["accounts"]] if reading.is_there else []
    return [EVERY_ACCOUNT, *dict.fromkeys([*known, *([chosen] if chosen else [])])]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= MAX_SECONDS else 0.0
