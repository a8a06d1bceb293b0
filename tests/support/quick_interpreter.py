"""Triton's interpreter without what it does again and again: its language is patched once, and stays so."""

from collections.abc import Callable
from functools import cache
from typing import Any

from triton import language
from triton.runtime import interpreter

LANGUAGES = (language, language.core)


class Kept:
    """The end of a patch that has none."""

    def restore(self) -> None:
        """In this process every kernel is interpreted."""


def patch_once() -> None:
    """It does so for each launch and each call of a device function, which takes longer than the call."""
    patch: Callable[[Any], Any] = interpreter._patch_lang  # type: ignore[attr-defined]
    patched: set[tuple[bool, ...]] = set()

    @cache
    def languages_of(function: Any) -> tuple[bool, ...]:
        return tuple(any(value is each for value in function.__globals__.values()) for each in LANGUAGES)

    def patch_new(function: Any) -> Kept:
        if (what := languages_of(function)) not in patched:
            patch(function)
            patched.add(what)
        return Kept()

    interpreter._patch_lang = patch_new  # type: ignore[attr-defined]
