"""CrashJudge: hears from every API server what was open there when an engine crashed, and names who stands out."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from vllm_obs.engine.frontend.crash_suspects import MAX_OPEN, SAME_CRASH_SECONDS, Suspect, standing_out


class CrashJudge:
    """Used on the launcher's event loop. `judged` is called with the digest, None where nobody stands out.

    That is once all have told; of several engines (`has_several`) after SAME_CRASH_SECONDS only, since another may
    die with the first. One of the servers that has not told everything by then is not waited for, and
    nobody is blamed: whoever it was may be there.
    """

    def __init__(self, judged: Callable[[bytes | None], None], num_servers: int, has_several: bool) -> None:
        self._judged = judged
        self._num_servers = num_servers
        self._has_several = has_several
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        self._suspects: dict[bytes, Suspect] = {}
        self._telling: set[int] = set()
        self._num_told: Counter[int] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, server: int, suspects: Sequence[Suspect]) -> None:
        """These were open in that server. None are its last word, and its only one where nothing was open."""
        if self._timer is None:
            self._timer = self._loop.call_later(SAME_CRASH_SECONDS, self._judge)
        if suspects:
            self._telling.add(server)
        else:
            self._telling.discard(server)
            self._num_told[server] += 1
        for suspect in suspects:
            known = self._suspects.get(suspect.digest)
            if known is None and len(self._suspects) > MAX_OPEN:
                continue
            if known is not None:
                suspect = Suspect(suspect.digest, suspect.may_run or known.may_run, suspect.is_new or known.is_new)
            self._suspects[suspect.digest] = suspect
        if not self._has_several and self._have_all_told():
            self._timer.cancel()
            self._judge()

    def _judge(self) -> None:
        suspects, have_told = list(self._suspects.values()), self._have_all_told()
        self._begin()
        culprit = standing_out(suspects) if have_told and len(suspects) <= MAX_OPEN else None
        self._judged(culprit)

    def _have_all_told(self) -> bool:
        """Each the same number of times: where two engines died together one may have told of the first alone."""
        numbers = {self._num_told[server] for server in range(self._num_servers)}
        return not self._telling and len(numbers) == 1 and 0 not in numbers
