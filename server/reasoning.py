"""Reasoning apart from the answer: what models write between <think> and </think>."""

from enum import Enum
from typing import NamedTuple, Protocol

BEGIN, END = "<think>", "</think>"


class Thought(NamedTuple):
    """What some text brought: more reasoning, and more of the answer."""

    reasoning: str = ""
    answer: str = ""


class _Place(Enum):
    """Where in the reply the next character is."""

    BEFORE = 0
    INSIDE = 1
    AFTER = 2


class ThinkParser:
    """Reads one reply; whatever the pieces, the parts joined are the same.

    `starts_inside`: the prompt, or the model's habit, has opened the thought already; the model may do it again.
    """

    def __init__(self, starts_inside: bool) -> None:
        self._starts_inside = starts_inside
        self._place = _Place.BEFORE
        self._text = ""

    def feed(self, text: str) -> Thought:
        """The next characters, apart; what may begin a mark is held back."""
        self._text += text
        if self._place is _Place.BEFORE:
            self._begin()
        reasoning = self._take_reasoning() if self._place is _Place.INSIDE else ""
        answer = ""
        if self._place is _Place.AFTER:
            answer, self._text = self._text, ""
        return Thought(reasoning, answer)

    def finish(self) -> Thought:
        """What was held back."""
        text, self._text = self._text, ""
        is_reasoning = self._place is _Place.INSIDE or (self._place is _Place.BEFORE and self._starts_inside)
        return Thought(reasoning=text) if is_reasoning else Thought(answer=text)

    def _begin(self) -> None:
        """Only blanks may stand before a thought."""
        start = self._text.lstrip()
        if start.startswith(BEGIN):
            self._place, self._text = _Place.INSIDE, start[len(BEGIN) :]
        elif not BEGIN.startswith(start):
            self._place = _Place.INSIDE if self._starts_inside else _Place.AFTER

    def _take_reasoning(self) -> str:
        before, mark, after = self._text.partition(END)
        if mark:
            self._place, self._text = _Place.AFTER, after
            return before
        held = next((num for num in range(len(END) - 1, 0, -1) if before.endswith(END[:num])), 0)
        self._text = before[len(before) - held :]
        return before[: len(before) - held]


class PromptEnd(Enum):
    """Where a prompt leaves its model: nowhere in particular, in a thought that it has begun, or behind one."""

    PLAIN = 0
    INSIDE = 1
    BEHIND = 2

    @classmethod
    def of(cls, text: str) -> "PromptEnd":
        """The place that the last characters of a prompt tell."""
        end = text.rstrip()
        return cls.INSIDE if end.endswith(BEGIN) else cls.BEHIND if end.endswith(END) else cls.PLAIN


class MakeThoughts(Protocol):
    """Makes the parser of one reply to such a prompt."""

    def __call__(self, prompt_end: PromptEnd = PromptEnd.PLAIN) -> ThinkParser:
        """The parser."""


def _qwen3(prompt_end: PromptEnd = PromptEnd.PLAIN) -> ThinkParser:
    return ThinkParser(starts_inside=prompt_end is PromptEnd.INSIDE)


def _deepseek_r1(prompt_end: PromptEnd = PromptEnd.PLAIN) -> ThinkParser:
    return ThinkParser(starts_inside=prompt_end is not PromptEnd.BEHIND)


PARSERS: dict[str, MakeThoughts] = {"qwen3": _qwen3, "deepseek_r1": _deepseek_r1}
"""The parsers by the names that --reasoning-parser takes."""
