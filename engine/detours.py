"""DetourClock: how long sequences were held up in the core, measured for those only to whom it happens."""

from collections.abc import Callable, Iterable
from typing import Literal

from vllm_obs.engine.messages import Detours
from vllm_obs.engine.request import Request
from vllm_obs.engine.step_decisions import StepDecisions

Stage = Literal["", "preempted", "recompute", "stalled"]
Find = Callable[[str], Request | None]
LastStepOf = Callable[[str], int]
"""The newest step in flight that runs a sequence; 0 where none does."""


class _Way:
    """A sequence that was held up at least once: its stage (empty on the straight way) and the sums before it."""

    __slots__ = ("_early_ns", "_is_early", "_request", "_sums", "since", "stage")

    def __init__(self, request: Request) -> None:
        self.stage: Stage = ""
        self.since = 0
        self._request = request
        self._is_early = False
        self._early_ns = 0
        self._sums: dict[Stage, int] = {"preempted": 0, "recompute": 0, "stalled": 0}

    def switch(self, stage: Stage, at: int) -> None:
        """From this moment on it is in another stage; its client is to be told of the one before."""
        if self.stage:
            num_ns = at - self.since
            sums = self._sums
            sums[self.stage] += num_ns
            self._early_ns += num_ns if self._is_early else 0
            self._request.untold_detours = Detours(
                sums["preempted"], sums["recompute"], sums["stalled"], self._early_ns
            )
        self.stage, self.since = stage, at
        self._is_early = self._request.num_output_tokens == 0


class DetourClock:
    """Told of every plan and answer of a core; all moments are monotonic ns.

    Where nobody is held up a step costs a look at four lists. What it finds is left in `untold_detours` of the
    sequence, and agrees with the ledger that is made from the core's records.
    """

    def __init__(self) -> None:
        self._ways: dict[str, _Way] = {}
        self._stalled: set[str] = set()
        self._recomputing: set[str] = set()
        self._awaited: dict[str, int] = {}
        """Who was left out while a step in flight runs it, and stalls when that step has answered."""
        self._over_at = 0
        self._paused_at = self._planned_at = 0

    def __len__(self) -> int:
        return len(self._ways)

    def planned(self, decisions: StepDecisions, find: Find, last_step_of: LastStepOf, at: int) -> None:
        """A plan was made at this moment."""
        self._planned_at = at
        if decisions.left_out_ids or decisions.preempted_ids or decisions.resumed_ids or self._stalled:
            self._take_decisions(decisions, find, at)
        if decisions.left_out_ids or self._awaited:
            self._await_or_stall(decisions.left_out_ids, find, last_step_of)

    def answered(self, step: int, requests: Iterable[Request], find: Find, sampled_at: int) -> None:
        """A step has sampled a token for each of these."""
        self._over_at = sampled_at
        if self._recomputing:
            for request in requests:
                if request.request_id in self._recomputing:
                    self._recomputing.discard(request.request_id)
                    self._ways[request.request_id].switch("", sampled_at)
        if self._awaited:
            for request_id in [name for name, last_step in self._awaited.items() if last_step <= step]:
                del self._awaited[request_id]
                if held_up := find(request_id):
                    self._stall(held_up, sampled_at)

    def failed(self, at: int) -> None:
        """A step broke off."""
        self._over_at = at

    def paused(self, at: int) -> None:
        """Nobody is admitted, or nothing planned, from this moment on."""
        self._paused_at = self._paused_at or at

    def resumed(self, running: Iterable[Request], last_step_of: LastStepOf) -> None:
        """Planning goes on. If nothing was planned meanwhile, these running sequences were held up as well.

        But for those that a step in flight runs.
        """
        if self._paused_at and self._planned_at <= self._paused_at:
            for request in running:
                if not last_step_of(request.request_id):
                    self._stall(request, max(self._paused_at, self._over_at))
        self._paused_at = 0

    def ended(self, request_id: str) -> None:
        """A sequence left the core."""
        self._awaited.pop(request_id, None)
        if self._ways.pop(request_id, None) is not None:
            self._stalled.discard(request_id)
            self._recomputing.discard(request_id)

    def _take_decisions(self, decisions: StepDecisions, find: Find, at: int) -> None:
        for request_id in decisions.preempted_ids:
            self._recomputing.discard(request_id)
            self._stalled.discard(request_id)
            if request := find(request_id):
                self._way(request).switch("preempted", at)
        for request_id in decisions.resumed_ids:
            if request := find(request_id):
                self._recomputing.add(request_id)
                self._way(request).switch("recompute", at)
        left_out = set(decisions.left_out_ids)
        for request_id in self._stalled - left_out:
            self._ways[request_id].switch("recompute" if request_id in self._recomputing else "", at)
        self._stalled &= left_out

    def _await_or_stall(self, left_out_ids: list[str], find: Find, last_step_of: LastStepOf) -> None:
        """Who is left out does nothing from the end of its last step on, which may be under way."""
        self._awaited.clear()
        for request_id in left_out_ids:
            if request_id in self._stalled or not (request := find(request_id)):
                continue
            if last_step := last_step_of(request_id):
                self._awaited[request_id] = last_step
            else:
                self._stall(request, self._over_at)

    def _stall(self, request: Request, at: int) -> None:
        way = self._way(request)
        if way.stage != "stalled":
            way.switch("stalled", max(at, way.since))
            self._stalled.add(request.request_id)

    def _way(self, request: Request) -> _Way:
        way = self._ways.get(request.request_id)
        if way is None:
            way = self._ways[request.request_id] = _Way(request)
        return way
