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


class AccountLabels:
    """Gives one key after the other its account, MAX_ACCOUNTS in all: its name, else key- and its number.

    Keys may share a name. No number is given twice, so that one which comes later is nobody else's.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._num_keys = 0

    def next(self, name: str) -> str:
        """The account of the next key; its name is empty where it has none."""
        self._num_keys += 1
        label = name or f"key-{self._num_keys}"
        if label not in self._known and len(self._known) >= MAX_ACCOUNTS:
            return OTHER
        self._known.add(label)
        return label


def account_labels(names: Sequence[str]) -> tuple[str, ...]:
    """The account of each key in the order given, which begins with number 1."""
    labels = AccountLabels()
    return tuple(map(labels.next, names))
