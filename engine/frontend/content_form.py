"""In which form a chat template takes the content of a message: as text, or as a list of parts."""

from enum import Enum
from typing import Any

import jinja2

Content = str | list[str]
"""A text, or the texts of its parts."""


class ContentForm(Enum):
    """TEXT is always text, parts joined by line breaks; PARTS always a list; AS_SENT what the client sent."""

    TEXT = "string"
    PARTS = "openai"
    AS_SENT = "auto"

    def of(self, content: Content) -> str | list[dict[str, str]]:
        """The content in this form."""
        if self is ContentForm.TEXT or (self is ContentForm.AS_SENT and isinstance(content, str)):
            return joined(content)
        texts = [content] if isinstance(content, str) else content
        return [{"type": "text", "text": text} for text in texts]


def joined(content: Content) -> str:
    """A content as one text, its parts joined by line breaks."""
    return content if isinstance(content, str) else "\n".join(content)


def content_form(asked: str, natural: ContentForm) -> ContentForm:
    """The form that `asked` names: string or openai, or with auto the one that a template takes by nature."""
    return natural if asked == "auto" else ContentForm(asked)


def natural_form(tree: jinja2.nodes.Template) -> ContentForm:
    """PARTS for a template that goes through a content part by part, AS_SENT if it looks for texts as well."""
    names = {
        assignment.target.name
        for assignment in tree.find_all(jinja2.nodes.Assign)
        if isinstance(assignment.target, jinja2.nodes.Name) and _is_content(assignment.node, set())
    }
    if not any(_is_content(loop.iter, names) for loop in tree.find_all(jinja2.nodes.For)):
        return ContentForm.TEXT
    is_tested = any(test.name == "string" for test in tree.find_all(jinja2.nodes.Test))
    return ContentForm.AS_SENT if is_tested else ContentForm.PARTS


def joined_text(content: Any) -> str | None:
    """The text of a content in any form; None where it holds something else."""
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return content if isinstance(content, str) else None


def _is_content(node: jinja2.nodes.Node, names: set[str]) -> bool:
    """Whether an expression is a message's content, or one of the variables that hold it."""
    if isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        return _is_content(node.node, names)
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return isinstance(node, jinja2.nodes.Name) and node.name in names
