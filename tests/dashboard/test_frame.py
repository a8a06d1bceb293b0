"""Texts from outside stay texts in Markdown, and what an Observer writes as code is shown as code."""

import pytest
from inspector_pages import texts
from markdown_it import MarkdownIt
from streamlit.testing.v1 import AppTest

from vllm_obs.dashboard.frame import code, escape, said

EVIL = "[x](http://evil.example) <b>b</b> **b** :red[r] $m$ # h"
MARKDOWN = MarkdownIt("commonmark")


def kinds(markdown: str) -> set[str]:
    """Which elements it is made of."""
    found = {token.type for token in MARKDOWN.parse(markdown)}
    return found | {each.type for token in MARKDOWN.parse(markdown) for each in token.children or ()}


PLAIN = kinds("x")


@pytest.mark.parametrize(
    "text",
    [EVIL, f"a ` b {EVIL}", f"`` {EVIL}", f"a ``` b {EVIL} ``` c", "x\n\n    y", "x\n===", "x\n- y", "1. y",
     "> y", "&lt;"],
)  # fmt: skip
def test_outside_text_is_nothing_but_text(text: str) -> None:
    assert kinds(f"x {escape(text)}") == PLAIN
    (inline,) = [token for token in MARKDOWN.parse(escape(text)) if token.type == "inline"]
    assert inline.children is not None
    assert "".join(each.content for each in inline.children) == " ".join(text.split())


def test_what_stands_between_two_backticks_is_code_and_all_else_is_text() -> None:
    assert said("try `vllm-obs top` and `a_b`") == "try `vllm-obs top` and `a_b`"
    assert said("a_b `c_d`") == r"a\_b `c_d`"
    assert kinds(said("a `c` d")) == {*PLAIN, "code_inline"}


@pytest.mark.parametrize(
    "text",
    [
        f"a ` b {EVIL}",
        f"`a` ` {EVIL}",
        f"` `a` {EVIL}",
        f"`` {EVIL} `a`",
        f"`` ` {EVIL} ` ``",
        f"`a``{EVIL}``b`",
        f"`a\n\n{EVIL}`",
        f"\\`{EVIL}\\`",
        f"``\n{EVIL}\n``",
    ],
)
def test_backticks_that_do_not_pair_let_nothing_out(text: str) -> None:
    assert kinds(f"x {said(text)}") <= {*PLAIN, "code_inline"}


def test_name_is_code_where_it_can_be() -> None:
    assert code("req_1") == "`req_1`"
    assert code("a`b_c") == r"a\`b\_c"
    assert code("") == ""


@pytest.mark.parametrize(("content", "status"), [({}, 0), (None, 0), (None, 404)])
def test_trouble_is_text_however_it_is_told(content: object, status: int) -> None:
    page = AppTest.from_string(
        "from vllm_obs.dashboard.frame import note_trouble\n"
        "from vllm_obs.dashboard.source import Reading\n"
        f"note_trouble(Reading({content!r}, 1.0, {EVIL!r}, {status}))\n"
    ).run()
    assert escape(EVIL) in texts(page)
