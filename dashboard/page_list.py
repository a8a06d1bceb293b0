"""The pages of the inspector, in order; each is a module of `dashboard/pages` with `render()`."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import NamedTuple

import streamlit as st
from streamlit.navigation.page import StreamlitPage


class InspectorPage(NamedTuple):
    """`name` is the module's and the address's."""

    name: str
    title: str

    def render(self) -> None:
        """Draw the page; its module is loaded when it is first asked for."""
        _render(self.name)()

    def as_page(self) -> StreamlitPage:
        """For Streamlit's navigation."""
        return st.Page(self.render, title=self.title, url_path=self.name, default=self is PAGES[0])


@cache
def _render(name: str) -> Callable[[], None]:
    render: Callable[[], None] = import_module(f"vllm_obs.dashboard.pages.{name}").render
    return render


PAGES = (
    InspectorPage("overview", "Overview"),
    InspectorPage("scheduler", "Scheduler"),
    InspectorPage("kv", "KV cache"),
    InspectorPage("requests", "Requests"),
    InspectorPage("processes", "Processes"),
    InspectorPage("profile", "Profile"),
    InspectorPage("incidents", "Incidents"),
)
