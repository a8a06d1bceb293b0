"""Reads the delivered rules, and which metrics a rule asks for, with or without braces."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

GRAFANA = Path(__file__).parents[2] / "grafana"

_OPERATORS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless"}
_FUNCTIONS = {"sum", "max", "min", "rate", "increase", "changes", "absent", "avg_over_time", "histogram_quantile"}
_WORDS = _OPERATORS | _FUNCTIONS
"""What PromQL itself means by these; a rule that uses others has them added here."""
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_NAME = re.compile(r"[a-zA-Z_:][\w:]*(?:\{[^}]*\})?")
_COUNTED = re.compile(r"\b(?:rate|increase)\(")


class Use(NamedTuple):
    """A metric in an expression, and the values that its labels are matched with."""

    metric: str
    matched: dict[str, list[str]]


def rules(folder: str) -> list[dict[str, Any]]:
    """The rules of `rules` or `alerts`, in the order of their files."""
    documents = [yaml.safe_load(path.read_text()) for path in sorted((GRAFANA / folder).glob("*.yml"))]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def uses(expr: str) -> list[Use]:
    """The metrics that an expression asks for."""
    bare = _GROUPED.sub(" ", _RANGE.sub("", expr))
    found = [each for each in _NAME.findall(bare) if each.partition("{")[0] not in _WORDS]
    return [Use(each.partition("{")[0], _matched(each)) for each in found]


def num_uncounted(expr: str) -> int:
    """How many rates are not summed at once, so that a counter's further labels could keep sums apart."""
    summed = re.findall(r"\bsum by \([^)]*\) \((?:rate|increase)\(", expr)
    return len(_COUNTED.findall(expr)) - len(summed)


def _matched(selector: str) -> dict[str, list[str]]:
    inner = _MATCHERS.search(selector)
    return {label: values.split("|") for label, _, values in _MATCHER.findall(inner[1] if inner else "")}
