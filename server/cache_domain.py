"""Cache domains: whose prefix-cache blocks a request may share, so that nobody can time another's prompts."""

import hashlib

MARK = "§"
"""Clients' own salts are ASCII, so that none of them can name a domain made here."""


def cache_domain(owner: str, salt: str | None) -> str | None:
    """What the blocks of a request are salted with; None shares them with all other requests without one.

    `owner` is empty where there is only one; a client's own `salt` divides its owner's domain further.
    """
    if not owner:
        return salt
    parts = (owner.encode(), b"" if salt is None else b"\0" + salt.encode())
    return MARK + hashlib.sha256(b"".join(parts)).hexdigest()
