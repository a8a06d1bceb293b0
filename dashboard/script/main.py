"""The Streamlit script: the pages, and what stands above each. Run once for every view of every viewer."""

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.header import header
from vllm_obs.dashboard.page_list import PAGES
from vllm_obs.dashboard.style import STYLE


def main() -> None:
    """Draw the page that is asked for."""
    st.set_page_config("vllm-obs inspector", layout="wide", initial_sidebar_state="collapsed")
    st.html(STYLE)
    page = st.navigation([page.as_page() for page in PAGES], position="top")
    url_state.carry()
    url_state.resolve_time()
    if header():
        page.run()


main()
