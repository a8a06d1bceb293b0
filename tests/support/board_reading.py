"""Reads boards as Grafana would: their panels and queries, and which metrics and labels a query asks for."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*,?')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_PARTS = re.compile(r"_(bucket|sum|count)$")


class Asked(NamedTuple):
    """A target of a panel. `place` says which, for people."""

    place: str
    expr: str
    is_instant: bool


class Selector(NamedTuple):
    """A metric in a query, and the labels that are matched."""

    metric: str
    labels: frozenset[str]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels but the rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def asked(board: dict[str, Any]) -> Iterator[Asked]:
    """The queries of all panels."""
    for panel in panels(board):
        for target in panel["targets"]:
            place = f"{board['title']}: {panel['title']} ({target['refId']})"
            yield Asked(place, target["expr"], target["instant"])


def selectors(expr: str) -> list[Selector]:
    """The metrics that an expression asks for; each must have braces."""
    found = []
    for name, matchers in _SELECTOR.findall(expr):
        rest = _MATCHER.sub("", matchers)
        assert not rest.strip(), (expr, rest)
        found.append(Selector(name, frozenset(_MATCHER.findall(matchers))))
    return found


def grouped_by(expr: str) -> set[str]:
    """The labels that it groups or matches by."""
    lists = _GROUPED.findall(expr)
    return {label.strip() for each in lists for label in each.split(",") if label.strip()}


def family(name: str, known: set[str]) -> str:
    """The metric that a series belongs to: `x_bucket`, `x_sum` and `x_count` belong to `x`."""
    return name if name in known else _PARTS.sub("", name)
