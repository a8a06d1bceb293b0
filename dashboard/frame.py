"""What all pages are made in: panels that refresh by themselves, and plain words where nothing is to be shown."""

import re
from collections.abc import Callable

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import seconds
from vllm_obs.dashboard.source import Reading, current

REFRESH_SECONDS = 1.0
STALE_SECONDS = 3.0


def is_held() -> bool:
    """Whether the page stands still: at a step, or because nothing new comes from a recording."""
    return url_state.paused_step() is not None or not current().is_live


def panel(draw: Callable[[], None], every: float = REFRESH_SECONDS) -> None:
    """Draw a part of the page that draws itself anew every so often, unless the page is held.

    It must write the same elements in the same order each time; panels are never nested.
    """
    st.fragment(draw, run_every=None if is_held() else every)()


def note_trouble(reading: Reading) -> None:
    """One line, always the same element: nothing while all is well, else what is wrong and how old this is."""
    place = st.empty()
    if not reading.trouble:
        return
    if reading.is_gone and reading.is_there:
        place.warning(
            f"The server does not answer: {said(reading.trouble)}. "
            f"Below is how it was {seconds(reading.age_seconds)} ago."
        )
    elif reading.is_gone:
        place.error(f"The server does not answer: {said(reading.trouble)}.")
    else:
        place.info(said(reading.trouble))


def teach(what: str, how: str = "") -> None:
    """An empty state: what would stand here, and how to get it there (Markdown)."""
    with st.container(border=True):
        st.markdown(f"**{what}**" + (f"\n\n{how}" if how else ""))


def said(text: str) -> str:
    """A sentence of the Observer for Markdown: what stands between two backticks is code, all else as it is."""
    return "".join(piece if _CODE.fullmatch(piece) else escape(piece) for piece in _CODE_PARTED.split(text))


def code(text: str) -> str:
    """A text from outside for Markdown, as code where it can stand there whole."""
    return f"`{text}`" if _CODE.fullmatch(f"`{text}`") else escape(text)


def escape(text: str) -> str:
    """A text from outside (an id, a label) for Markdown, every sign as itself; all in one line."""
    return _SIGNS.sub(r"\\\g<0>", _SPACE.sub(" ", text))


_CODE = re.compile(r"`[^`\r\n]+`")
_CODE_PARTED = re.compile(rf"((?<!`){_CODE.pattern}(?!`))")
_SIGNS = re.compile(r"[\\`*_{}\[\]()<>#+\-.!|$~:&=]")
_SPACE = re.compile(r"\s+")
