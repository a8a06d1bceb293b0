"""ApiKeys: which keys are valid now and whose each is; kept as digests, replaced all at once."""

import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from vllm_obs.server.accounts import AccountLabels


class Holder(NamedTuple):
    """Whose a key is: `account` is a label for people, `owner` what stored replies and cached blocks belong to.

    Keys with one name have one owner; a key without a name is an owner by itself, wherever it stands in its file.
    """

    account: str
    owner: str


class ApiKeys:
    """The valid keys, each with its holder. Without any the server is open to everybody."""

    def __init__(self, names_by_key: Mapping[str, str]) -> None:
        self.are_several = False
        """Whether this run has known two owners or more. It stays so: what the first one cached is still there."""
        self._labels = AccountLabels()
        self._holders: dict[bytes, Holder] = {}
        self._first_owner = ""
        self.replace(names_by_key)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._holders)

    def replace(self, names_by_key: Mapping[str, str]) -> tuple[int, int]:
        """From now on these keys and no others are valid; (how many are new, how many are gone).

        A key that stays keeps its label; a new one gets a label that no other key has had in this run.
        """
        before = self._holders
        digests = {_digest(key.encode()): name for key, name in names_by_key.items()}
        self._holders = {digest: self._holder(digest, name) for digest, name in digests.items()}
        owners = {holder.owner for holder in self._holders.values()}
        self._first_owner = self._first_owner or min(owners, default="")
        self.are_several |= bool(owners - {self._first_owner})
        return len(self._holders.keys() - before.keys()), len(before.keys() - self._holders.keys())

    def _holder(self, digest: bytes, name: str) -> Holder:
        known, owner = self._holders.get(digest), f"name:{name}" if name else f"key:{digest.hex()}"
        if known is not None and known.owner == owner:
            return known
        return Holder(self._labels.next(name), owner)

    def holder(self, presented: bytes) -> Holder | None:
        """Whose the presented key is; None for no key of ours.

        All are compared each time, as digests: neither a key's length nor which one nearly fits can be timed.
        """
        digest = _digest(presented)
        matches = [holder for known, holder in self._holders.items() if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
