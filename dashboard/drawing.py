"""Small pictures as HTML, made of numbers and our own words only: stacked bars and their legends, readable aloud.

Streamlit takes SVG out of HTML, so they are made of boxes.
"""

from collections.abc import Iterable
from html import escape
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a bar: `share` of its whole length (0 to 1); `words` are said where it is pointed at."""

    name: str
    share: float
    colour: str
    words: str


def stacked_bar(parts: Iterable[Part], label: str, height: int = 20) -> str:
    """HTML of one bar; what no part takes stays empty, which is idle."""
    shown = [part for part in parts if part.share > 0]
    words = ", ".join(part.words for part in shown)
    pieces = "".join(
        f'<div title="{escape(part.words)}" '
        f'style="width:{100 * min(1.0, part.share):.3f}%;background:{part.colour}"></div>'
        for part in shown
    )
    return (
        f'<div role="img" aria-label="{escape(label)}: {escape(words)}" style="display:flex;width:100%;'
        f'height:{height}px;overflow:hidden;border:1px solid #8886;border-radius:4px">{pieces}</div>'
    )


def legend(parts: Iterable[Part]) -> str:
    """HTML of a line of coloured dots with what they mean."""
    items = (
        f'<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:10px;'
        f'height:10px;border-radius:2px;margin-right:5px;background:{part.colour}"></span>{escape(part.words)}</span>'
        for part in parts
    )
    return f'<div class="tabular" style="font-size:0.86em;line-height:1.7;margin-top:3px">{"".join(items)}</div>'
