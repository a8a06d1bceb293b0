"""Whatever texts an Observer answers with, no page makes links, HTML or colours of them."""

import re
from typing import Any

import pytest
from inspector_pages import shown
from observer_states import Answers, KeptSource, answers_of
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Element

from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.page_list import PAGES
from vllm_obs.dashboard.scheduler_words import step_sentences
from vllm_obs.dashboard.source import Reading

NAMES = [page.name for page in PAGES]
EVIL = "[evil](http://evil.example)<i>evil</i>:red[evil]"
CODE = re.compile(r"(?<![\\`])`[^`\n]+`(?!`)")
"""Nothing is read in it."""
NAMING = frozenset({"incident", "profile", "files", "engine", "stage_ns", "run_dir"})
"""What is asked for by name next, or looked up in a table of ours."""


def spoiled(content: Any) -> Any:
    """The same with more in each of its texts."""
    if isinstance(content, str):
        return content + EVIL if content else content
    if isinstance(content, list):
        return [spoiled(each) for each in content]
    if isinstance(content, dict):
        return {name: each if name in NAMING else spoiled(each) for name, each in content.items()}
    return content


def drawn(page: AppTest) -> list[str]:
    """All that Streamlit reads as Markdown."""
    kinds = ("markdown", "caption", "warning", "error", "info", "success")
    markdown = [str(each.value) for kind in kinds for each in page.get(kind) if isinstance(each, Element)]
    figures = [f"{each.label} {each.value} {each.delta}" for each in page.metric]
    labels = [str(each.proto.label) for kind in ("button", "expander", "tab") for each in page.get(kind)
              if hasattr(each.proto, "label")]  # fmt: skip
    return [*markdown, *figures, *labels]


def let_through(page: AppTest) -> list[str]:
    """Texts that are more than text, of Markdown and of HTML."""
    texts = [CODE.sub("", text) for text in drawn(page)]
    markdown = [text for text in texts for sign in ("[evil](", "<i>evil", ":red[evil") if sign in text]
    return markdown + [each.proto.body for each in page.get("html") if "<i>evil" in each.proto.body]


def request_of(answers: Answers) -> str:
    """A request that is kept whole."""
    return next(name for name in answers if name.startswith("/inspect/requests/")).split("/")[3]


def step_of(answers: Answers) -> str:
    return str(answers["/inspect/steps"]["steps"]["step"][-3])


@pytest.mark.parametrize("state", ["saturated", "stalled", "incident"])
@pytest.mark.parametrize("name", NAMES)
def test_no_page_reads_what_it_is_told(name: str, state: str) -> None:
    answers = answers_of(state)
    page = shown(name, KeptSource({path: spoiled(content) for path, content in answers.items()}))
    assert not page.exception
    assert drawn(page)
    assert let_through(page) == []


@pytest.mark.parametrize(("name", "held"), [("scheduler", "step"), ("kv", "request"), ("requests", "request")])
def test_neither_held_nor_following_somebody(name: str, held: str) -> None:
    answers = answers_of("saturated")
    value = step_of(answers) if held == "step" else request_of(answers)
    page = shown(name, KeptSource({path: spoiled(each) for path, each in answers.items()}), **{held: value})
    assert not page.exception
    assert let_through(page) == []


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_trouble_is_not_read_either(name: str, is_gone: bool) -> None:
    class Troubled(KeptSource):
        def get(self, path: str, **query: Any) -> Reading:
            reading = super().get(path, **query)
            if path == "/inspect/state" and not is_gone:
                return reading
            return Reading(None, 0.0, EVIL, 0 if is_gone else 500)

    page = shown(name, Troubled(answers_of("saturated")), slo="ttft=1", request="nobody", profile="none")
    assert not page.exception
    assert let_through(page) == []


def test_order_that_is_refused_is_not_read() -> None:
    source = KeptSource(answers_of("saturated"))
    source.post_answer = Reading(None, 0.0, EVIL, 409)
    page = shown("profile", source)
    page.button[0].click().run()
    assert [EVIL in each.value for each in page.error] == [False]
    assert let_through(page) == []


def test_failed_step_does_not_leave_its_code() -> None:
    step = answers_of("saturated")
    told = step[f"/inspect/steps/{step_of(step)}"] | {"answered": None, "failed": {"error": f"a ` {EVIL}"}}
    (sentence,) = [each for each in step_sentences(told, 0) if "failed" in each]
    assert sentence == f"It **failed**: {escape(f'a ` {EVIL}')}."


def test_profile_that_gave_nothing_is_not_read() -> None:
    answers = answers_of("saturated")
    parts = [{"role": EVIL, "pid": 7, "error": EVIL}]
    answers["/inspect/profiles/p"] = {
        "profile": "p", "state": EVIL, "parts": parts, "files": [], "operators": [],
        "samples": [], "sampling": {"sampler": EVIL, "says": EVIL, "missing": [EVIL]},
    }  # fmt: skip
    page = shown("profile", KeptSource(answers), profile="p")
    assert not page.exception
    assert len(page.warning) == 1
    assert let_through(page) == []
