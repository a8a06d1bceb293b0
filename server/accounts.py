"""The accounts that requests are charged to: a label for each API key, never anything of the key itself."""

import re
from collections.abc import Sequence

MAX_ACCOUNTS = 50
OTHER = "other"
"""The account of all keys beyond the first MAX_ACCOUNTS labels."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_TAKEN = re.compile(r"none|other|unknown|key-\d+", re.ASCII)


def split_named(line: str) -> tuple[str, str]:
    """The name and the key of a key file's line: `NAME<tab>KEY`, else the whole line is a key without a name.

    No key has ever had a tab in it. ValueError, which shows nothing of the line, for a name that cannot be one.
    """
    name, tab, key = line.rpartition("\t")
    name = name.rstrip("\t")
    if not tab:
        return "", line
    if not _NAME.fullmatch(name):
        raise ValueError("the name before the tab is not 1 to 64 letters, digits, dots, dashes or underscores")
    if _TAKEN.fullmatch(name):
        raise ValueError("the name before the tab is none, other, unknown or key-N, which mean something else")
    return name, key


def account_labels(names: Sequence[str]) -> tuple[str, ...]:
    """The account of each key in the order given: its name, else key- and its place. Keys may share a name."""
    labels: list[str] = []
    known: set[str] = set()
    for place, name in enumerate(names, 1):
        label = name or f"key-{place}"
        if label not in known and len(known) >= MAX_ACCOUNTS:
            label = OTHER
        known.add(label)
        labels.append(label)
    return tuple(labels)
