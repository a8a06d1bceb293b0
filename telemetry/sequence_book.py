"""SequenceBook: every live sequence's ledger, and the rule for when a ledger closes."""

from collections.abc import Mapping

from vllm_obs.telemetry.ended_sequences import EndedSequences
from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ledger_laws import check_closed
from vllm_obs.telemetry.records import HttpRequestEnded, RequestEnded, RequestSubmitted
from vllm_obs.telemetry.run_snapshot import LooseEnds, RunSnapshot
from vllm_obs.telemetry.view import Source, View

MAX_LIVE_SEQUENCES = 65_536
MAX_HELD_TOKENS = 4096
MAX_API_SERVERS = 1024

UNTAKEN_GRACE_NS = 10**9
"""So long after its ending a sequence that the core has not taken counts as never taken."""
RELEASE_GRACE_NS = 10 * 10**9
HTTP_GRACE_NS = 600 * 10**9
"""A slow client may take a reply's last byte long after its sequences ended."""


class SequenceBook:
    """The ledgers by id. `live` holds those submitted and not closed, `orphans` those of which only the core told.

    A ledger closes when its ending, its release (if the core took it) and the end of its HTTP request (if it has
    one) have come, in whatever order; or when who should tell is gone; or when that took too long.
    """

    def __init__(self, view: View, laws: Invariants) -> None:
        self.live: dict[str, SequenceLedger] = {}
        self.orphans: dict[str, SequenceLedger] = {}
        self.ended = EndedSequences()
        self.num_submitted = 0
        self.num_ended = 0
        self.num_abandoned = 0
        """Sequences that will never have an ending: their API server died, or the record was lost."""
        self._view = view
        self._laws = laws
        self._by_http: dict[str, list[str]] = {}
        self._ending: dict[str, SequenceLedger] = {}
        self._without_core: set[str] = set()
        self._held: dict[str, list[tuple[int | None, int]]] = {}
        self._apis: dict[int, Source] = {}
        self._lossy_apis: set[int] = set()
        self._doubtful_until = 0
        self._doubted: set[str] = set()

    def known(self, request_id: str) -> SequenceLedger | None:
        """The sequence with just this id: a live one, one that ended lately, or an orphan. A few look-ups."""
        return self.live.get(request_id) or self.ended.get(request_id) or self.orphans.get(request_id)

    def submit(self, source: Source, submitted: RequestSubmitted) -> None:
        """An API server sent a sequence on its way."""
        request_id = submitted.request_id
        if request_id in self.live or request_id in self.ended:
            self._laws.report("arrivals", submitted.submitted_at, request_id, "submitted twice")
            return
        orphan = self.orphans.pop(request_id, None)
        ledger = orphan or SequenceLedger(submitted)
        self._make_room()
        self.live[request_id] = ledger
        self.num_submitted += 1
        ledger.api_generation = source.generation
        if source.generation not in self._apis:
            self._meet_api(source)
        if submitted.http_id:
            self._by_http.setdefault(submitted.http_id, []).append(request_id)
        if orphan is None:
            ledger.begin()
            if submitted.submitted_at <= self._doubtful_until:
                self._doubt(ledger)
        else:
            orphan.adopt(submitted)
            self._tell_held(orphan)
            self._close_if_over(orphan)

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """A sequence has its first token; an orphan's tokens are told to the views when it has been submitted."""
        if ledger.is_orphan:
            self._hold(ledger, None, sampled_at)
        else:
            self._view.first_token(ledger, sampled_at)

    def tokens(self, ledgers: list[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        """Another token for each of these, all so long after the one before."""
        if orphans := [ledger for ledger in ledgers if ledger.is_orphan]:
            for orphan in orphans:
                self._hold(orphan, gap_ns, sampled_at)
            ledgers = [ledger for ledger in ledgers if not ledger.is_orphan]
        if ledgers:
            self._view.tokens(ledgers, gap_ns, sampled_at)

    def _hold(self, ledger: SequenceLedger, gap_ns: int | None, sampled_at: int) -> None:
        held = self._held.setdefault(ledger.request_id, [])
        if len(held) < MAX_HELD_TOKENS:
            held.append((gap_ns, sampled_at))

    def end(self, source: Source, ended: RequestEnded) -> None:
        """A sequence has its ending."""
        ledger = self.live.get(ended.request_id)
        if ledger is None or ledger.ended is not None:
            if source.generation not in self._lossy_apis:
                evidence = "ended without having been submitted" if ledger is None else "ended twice"
                self._laws.report("arrivals", ended.ended_at, ended.request_id, evidence)
            return
        ledger.ended = ended
        self.num_ended += 1
        self._ending[ended.request_id] = ledger
        self._close_if_over(ledger)

    def end_http(self, http: HttpRequestEnded) -> None:
        """An HTTP request is over, and with it the reply that its sequences are part of."""
        for request_id in self._by_http.pop(http.http_id, ()):
            ledger = self.live.get(request_id)
            if ledger is not None:
                ledger.http = http
                self._close_if_over(ledger)

    def add_orphan(self, ledger: SequenceLedger) -> None:
        """The core told of a sequence that nobody has submitted yet."""
        if len(self.orphans) >= MAX_LIVE_SEQUENCES:
            self._drop_orphan(next(iter(self.orphans)))
        ledger.is_orphan = True
        self.orphans[ledger.request_id] = ledger

    def leave_core(self, ledger: SequenceLedger) -> None:
        """The core released the sequence, or will not tell any more."""
        self._without_core.add(ledger.request_id)
        if ledger.request_id in self.live:
            self._close_if_over(ledger)
        elif not ledger.is_orphan:
            self._without_core.discard(ledger.request_id)

    def lose_api(self, source: Source) -> None:
        """Records of an API server were lost: nothing about its live sequences is exact any more."""
        self._lossy_apis.add(source.generation)
        for ledger in self.live.values():
            if ledger.api_generation == source.generation:
                ledger.is_partial = True
                self._doubted.discard(ledger.request_id)

    def doubt_untaken(self, until: int) -> None:
        """A core's records up to this moment were lost, perhaps all about who is not known to have been taken."""
        self._doubtful_until = max(self._doubtful_until, until)
        for ledger in self.live.values():
            if not ledger.taken_at and not ledger.is_partial:
                self._doubt(ledger)

    def trust(self, ledger: SequenceLedger) -> None:
        """The core took the sequence just now: if only that was in doubt, nothing about it was lost."""
        if ledger.request_id in self._doubted:
            self._doubted.discard(ledger.request_id)
            ledger.is_partial = False

    def api_of(self, ledger: SequenceLedger) -> Source | None:
        """The API server that submitted a live sequence; None for an orphan."""
        return self._apis.get(ledger.api_generation)

    def _meet_api(self, source: Source) -> None:
        self._apis[source.generation] = source
        if len(self._apis) > MAX_API_SERVERS:
            del self._apis[next(iter(self._apis))]

    def _doubt(self, ledger: SequenceLedger) -> None:
        ledger.is_partial = True
        self._doubted.add(ledger.request_id)

    def end_api(self, source: Source, worked_until: Mapping[str, int]) -> None:
        """An API server is gone: its sequences get no ending any more, and close as they are.

        `worked_until` says by engine when its last step was over: until then a sequence in it lived.
        """
        self._apis.pop(source.generation, None)
        self._lossy_apis.discard(source.generation)
        for ledger in list(self.live.values()):
            if ledger.api_generation == source.generation:
                if ledger.ended is None:
                    ledger.abandon(worked_until.get(ledger.engine, 0))
                self._close(ledger)

    def tick(self, now: int) -> None:
        """All that was published up to about `now` has been applied: close what waited too long."""
        for ledger in list(self._ending.values()):
            if now > self._deadline(ledger):
                ledger.is_partial |= bool(ledger.taken_at) and ledger.released is None
                self._close(ledger)
        if self._lossy_apis:
            self._close_unended(now)
        self._drop_lost_orphans(now)
        self.ended.trim(now)
        num_open = len(self.live) - len(self._ending)
        if self.num_submitted != self.num_ended + self.num_abandoned + num_open:
            evidence = f"{self.num_submitted} submitted, {self.num_ended} ended, {num_open} in flight"
            self._laws.report("arrivals", now, "", evidence)

    def loose_ends(self) -> LooseEnds:
        """What a checkpoint keeps beside the ledgers."""
        return LooseEnds(
            without_core=self._without_core,
            held=self._held,
            apis=self._apis,
            lossy_apis=self._lossy_apis,
            doubted=self._doubted,
            doubtful_until=self._doubtful_until,
        )

    def restore(self, snapshot: RunSnapshot) -> None:
        """Go on with the live ledgers of a checkpoint."""
        self.num_submitted, self.num_ended = snapshot.num_submitted, snapshot.num_ended
        self.num_abandoned = snapshot.num_abandoned
        ends = snapshot.loose_ends
        self._without_core, self._held, self._apis = ends.without_core, ends.held, ends.apis
        self._lossy_apis = ends.lossy_apis
        self._doubted, self._doubtful_until = ends.doubted, ends.doubtful_until
        for ledger in snapshot.sequences:
            if ledger.is_orphan:
                self.orphans[ledger.request_id] = ledger
            else:
                self._restore_live(ledger)

    def _restore_live(self, ledger: SequenceLedger) -> None:
        self.live[ledger.request_id] = ledger
        if ledger.ended is not None:
            self._ending[ledger.request_id] = ledger
        if ledger.submitted.http_id and ledger.http is None:
            self._by_http.setdefault(ledger.submitted.http_id, []).append(ledger.request_id)

    def _make_room(self) -> None:
        if len(self.live) >= MAX_LIVE_SEQUENCES:
            oldest = next(iter(self.live.values()))
            oldest.is_partial = True
            self._close(oldest)

    def _close_if_over(self, ledger: SequenceLedger) -> None:
        if ledger.ended is None or (ledger.submitted.http_id and ledger.http is None):
            return
        if ledger.released is not None or ledger.request_id in self._without_core:
            self._close(ledger)

    def _close(self, ledger: SequenceLedger) -> None:
        request_id = ledger.request_id
        del self.live[request_id]
        self._without_core.discard(request_id)
        self._doubted.discard(request_id)
        if self._ending.pop(request_id, None) is None:
            self.num_abandoned += 1
        if ledger.submitted.http_id and ledger.http is None:
            self._forget_http(ledger)
        ledger.close()
        check_closed(ledger, self._laws)
        self.ended.add(ledger)
        self._view.sequence_closed(ledger)

    def _forget_http(self, ledger: SequenceLedger) -> None:
        siblings = self._by_http.get(ledger.submitted.http_id, [])
        if ledger.request_id in siblings:
            siblings.remove(ledger.request_id)
        if not siblings:
            self._by_http.pop(ledger.submitted.http_id, None)

    def _deadline(self, ledger: SequenceLedger) -> int:
        """Until when a sequence that has ended may wait for the rest."""
        assert ledger.ended is not None
        http_id = ledger.submitted.http_id
        if http_id and ledger.http is None and not ledger.is_partial:
            return self._last_ending(http_id) + HTTP_GRACE_NS
        return ledger.ended_at + self._grace(ledger)

    def _grace(self, ledger: SequenceLedger) -> int:
        if ledger.taken_at or ledger.is_partial:
            return RELEASE_GRACE_NS
        # The core refused one of which it sent a message without having recorded that it took it.
        return 0 if ledger.ended is not None and ledger.ended.taken_at else UNTAKEN_GRACE_NS

    def _last_ending(self, http_id: str) -> int:
        siblings = [self.live[request_id] for request_id in self._by_http.get(http_id, ())]
        if any(sibling.ended is None for sibling in siblings):
            return 1 << 62
        return max((sibling.ended_at for sibling in siblings), default=0)

    def _close_unended(self, now: int) -> None:
        """An ending that was lost does not come any more when everything else has."""
        for ledger in list(self.live.values()):
            if ledger.is_partial and ledger.ended is None:
                last_at = self._left_core_at(ledger)
                last_at = max(last_at, ledger.http.ended_at) if ledger.http is not None else last_at
                if last_at and now > last_at + RELEASE_GRACE_NS:
                    self._close(ledger)

    def _left_core_at(self, ledger: SequenceLedger) -> int:
        """When a sequence left its core, at the latest where its release was lost; 0 if it has not."""
        if ledger.released is not None:
            return ledger.released.released_at
        if ledger.request_id not in self._without_core:
            return 0
        return max(ledger.since, ledger.last_token_at, self._doubtful_until)

    def _tell_held(self, ledger: SequenceLedger) -> None:
        for gap_ns, sampled_at in self._held.pop(ledger.request_id, ()):
            if gap_ns is None:
                self._view.first_token(ledger, sampled_at)
            else:
                self._view.tokens([ledger], gap_ns, sampled_at)

    def _drop_lost_orphans(self, now: int) -> None:
        for ledger in list(self.orphans.values()):
            left_at = self._left_core_at(ledger)
            if left_at and now > left_at + RELEASE_GRACE_NS:
                self._drop_orphan(ledger.request_id)
                if ledger.released is not None and not self._lossy_apis and not ledger.is_partial:
                    self._laws.report("arrivals", now, ledger.request_id, "released without having been submitted")

    def _drop_orphan(self, request_id: str) -> None:
        del self.orphans[request_id]
        self._held.pop(request_id, None)
        self._without_core.discard(request_id)
