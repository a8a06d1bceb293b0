"""Runs one page of the inspector over a source, without a browser."""

from streamlit.testing.v1 import AppTest

from vllm_obs.dashboard.source import Source, install

SECONDS = 30


def shown(name: str, source: Source, **query: str) -> AppTest:
    """The page as it is drawn at first. Elements of its panels are among the others."""
    install(source)
    script = (
        "import streamlit as st\n"
        "from vllm_obs.dashboard import url_state\n"
        "from vllm_obs.dashboard.header import header\n"
        f"from vllm_obs.dashboard.pages.{name} import render\n"
        "url_state.carry()\nif header():\n    render()\n"
    )
    page = AppTest.from_string(script, default_timeout=SECONDS)
    for key, value in query.items():
        page.query_params[key] = value
    return page.run()


def texts(page: AppTest) -> str:
    """All that can be read in its Markdown, captions, metrics and notes."""
    parts = [
        element.value
        for kind in ("markdown", "caption", "warning", "error", "info", "success")
        for element in page.get(kind)
    ]
    parts += [f"{metric.label} {metric.value}" for metric in page.metric]
    return "\n".join(str(part) for part in parts)
