"""Invariants: the conservation laws between facts, how often each was broken, and the last evidence."""

from dataclasses import dataclass
from typing import Final

LAWS: Final[dict[str, str]] = {
    "arrivals": "Sequences that were submitted are ended or in flight, and each ends once.",
    "in_core": "Sequences that the core took are released, or run or wait in it.",
    "prompt_tokens": "A prompt's tokens were cached or computed: by source they sum to the prompt.",
    "output_tokens": "A sequence's tokens at its release are those that its steps answered.",
    "used_tokens": "A sequence ends with no more tokens than the core sampled for it.",
    "blocks": "Active, cached and free blocks are all the blocks.",
    "block_map": "The block map made from what changed is what the core says of its blocks.",
    "stages": "The stages of a sequence touch, begin when it was received and sum to its latency.",
    "no_negative_time": "Nothing ended before it began.",
    "step_order": "A step is answered once, after it was planned, and steps are numbered upwards.",
}
"""The closed set of laws: name, and what it says."""

MAX_EVIDENCE_CHARS = 400


@dataclass(slots=True)
class Breach:
    """How often a law was broken, when last (monotonic ns, 0 for never), by whom and with which numbers."""

    law: str
    num_broken: int = 0
    last_at: int = 0
    subject: str = ""
    evidence: str = ""


class Invariants:
    """Counts what breaks a law. Whoever applies the facts checks the laws and reports here."""

    def __init__(self) -> None:
        self._breaches = {law: Breach(law) for law in LAWS}

    @property
    def num_broken(self) -> int:
        """All breaches of all laws."""
        return sum(breach.num_broken for breach in self._breaches.values())

    def counts(self) -> dict[str, int]:
        """How often each law was broken, zeros included."""
        return {law: breach.num_broken for law, breach in self._breaches.items()}

    def breaches(self) -> list[Breach]:
        """Every law with its last breach, in the order of LAWS."""
        return list(self._breaches.values())

    def report(self, law: str, at: int, subject: str, evidence: str) -> None:
        """A law of the closed set was broken: by which sequence or step, and the numbers that show it."""
        breach = self._breaches[law]
        breach.num_broken += 1
        breach.last_at, breach.subject, breach.evidence = at, subject, evidence[:MAX_EVIDENCE_CHARS]

    def state(self) -> list[Breach]:
        """For a checkpoint."""
        return self.breaches()

    def restore(self, breaches: list[Breach]) -> None:
        """Go on from a checkpoint; laws that it does not know begin at zero."""
        self._breaches.update({breach.law: breach for breach in breaches if breach.law in LAWS})
