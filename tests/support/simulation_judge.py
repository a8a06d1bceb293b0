"""The judge of a simulated history: which ending a sequence may have, by what happened to it."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from simulation_front import SimulatedFront
from simulation_requests import Asked
from simulation_world import World


class Judge:
    """Told of everything that may end a sequence otherwise than by itself; without an excuse that is a fault."""

    def __init__(self, world: World) -> None:
        self.are_all_aborted = False
        """Whether the engine was told to abort whatever it holds."""
        self._world = world
        self._excuses: defaultdict[str, set[str]] = defaultdict(set)
        self._aborted: set[str] = set()

    def excuse(self, request_id: str, reason: str) -> None:
        """This one may fail for this reason."""
        self._excuses[request_id].add(reason)

    def aborted(self, request_ids: Iterable[str]) -> None:
        """Their client has left."""
        self._aborted.update(request_ids)

    def asked(self, asked: Asked, poisoned: set[str]) -> None:
        """A request is about to be sent; whatever happens, its sequences may meet these errors."""
        world = self._world
        num_tokens = min(len(asked.prompt) + max(asked.params.max_tokens or 0, 1), world.max_model_len)
        for request_id in asked.ids:
            if num_tokens > world.num_slots:
                self.excuse(request_id, "context_length_exceeded")
            if request_id in poisoned:
                self.excuse(request_id, "internal_error")

    def check_end(self, front: SimulatedFront) -> Counter[str]:
        """Everything is over: everyone has got one ending, and one that may be; how often each kind was."""
        assert front.outputs.num_open == 0, "somebody never got an ending"
        assert len(front.queue) == 0, "somebody is queued for ever"
        assert front.ledger.endings == dict.fromkeys(front.transcripts, 1), "endings are recorded once"
        found: Counter[str] = Counter()
        for request_id, transcript in front.transcripts.items():
            self._check(request_id, transcript.ending, transcript.reason)
            found[f"ending: {transcript.ending} {transcript.reason}".strip()] += 1
        return found

    def _check(self, request_id: str, ending: str, reason: str) -> None:
        if ending == "abort":
            assert request_id in self._aborted or self.are_all_aborted, f"{request_id} was aborted by nobody"
        elif ending == "error":
            assert reason in self._excuses[request_id], f"{request_id} failed by itself: {reason}"
        else:
            assert ending, f"{request_id} never got an ending"
