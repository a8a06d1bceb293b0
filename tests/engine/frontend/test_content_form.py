"""Which form a template takes a message's content in."""

import pytest

from vllm_obs.engine.frontend.chat_template import ChatTemplate
from vllm_obs.engine.frontend.content_form import ContentForm, content_form, joined_text

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
LOOP = (
    "{% for message in messages %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
NAMED = "{% for m in messages %}{% set c = m.content %}{% for part in c %}{{ part.text }}{% endfor %}{% endfor %}"
PLAIN = "{% for message in messages %}{{ message['content'] | trim }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (None, ContentForm.TEXT),
        (PLAIN, ContentForm.TEXT),
        (LOOP, ContentForm.PARTS),
        (NAMED, ContentForm.PARTS),
        (BOTH, ContentForm.AS_SENT),
    ],
)
def test_template_says_by_its_loops_which_form_it_takes(source: str | None, form: ContentForm) -> None:
    template = ChatTemplate(source, _Tokenizer())  # type: ignore[arg-type]
    assert template.natural_form is form
    assert content_form("auto", form) is form
    assert content_form("string", form) is ContentForm.TEXT
    assert content_form("openai", form) is ContentForm.PARTS


class _Tokenizer:
    """What a template asks a tokenizer for when it is made: nothing."""


def test_each_form_of_a_content() -> None:
    assert [ContentForm.TEXT.of("a"), ContentForm.TEXT.of(["a", "b"])] == ["a", "a\nb"]
    assert [ContentForm.PARTS.of("a"), ContentForm.PARTS.of(["a", "b"])] == [PARTS[:1], PARTS]
    assert [ContentForm.AS_SENT.of("a"), ContentForm.AS_SENT.of(["a", "b"])] == ["a", PARTS]


def test_text_of_any_form() -> None:
    assert [joined_text("a"), joined_text(PARTS), joined_text(None), joined_text([{"image": 1}])] == [
        "a",
        "a\nb",
        None,
        None,
    ]
