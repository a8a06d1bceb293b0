"""The plans of one engine's steps as a stream: a plan is told by its difference from an earlier one."""

from collections import deque
from collections.abc import Sequence

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.executor.commands import Command, ExecuteModel, ExecuteNext, RowChanges
from vllm_obs.engine.executor.plan_columns import pack_columns, unpack_columns
from vllm_obs.engine.plan import StepPlan
from vllm_obs.engine.wire_checks import check_plan

NUM_PLANS_KEPT = 16
"""Whose rows both ends remember. In a pipeline a plan has those of the one as many before as there are stages."""
_NO_CHANGES = RowChanges([], [], [], [])


class PlanWriter:
    """Makes ExecuteModel smaller for ranks that have taken all commands before it.

    From one step to the next most rows stay, and 256 ids are most of a plan. The scheduler hands on the same
    strings, so that to see that they stay costs a look at each pointer. It never changes a list it has handed on.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[int, list[str]]] = deque(maxlen=NUM_PLANS_KEPT)

    def told(self, command: ExecuteModel) -> ExecuteModel | ExecuteNext:
        """The command as it is to be sent: whole where no plan that was told before is like it."""
        call_id, plan = command
        for earlier in reversed(self._told):
            if earlier[1] == plan.running_ids:
                break
        else:
            told = self._with_other_rows(command) or command
            self._told.append((call_id, _rows_after(plan)))
            return told
        # The list that is kept already: to let go of another one costs a look at each of its strings.
        self._told.append((call_id, _rows_after(plan) if plan.new_rows else earlier[1]))
        has_changes = plan.new_rows or plan.released_ids
        changes = RowChanges([], [], plan.new_rows, plan.released_ids) if has_changes else None
        return ExecuteNext(call_id, earlier[0], plan.step, pack_columns(plan), changes)

    def forget(self) -> None:
        """A command was not sent: the next plan is told whole."""
        self._told.clear()

    def _with_other_rows(self, command: ExecuteModel) -> ExecuteNext | None:
        call_id, plan = command
        ids = plan.running_ids
        for earlier_call_id, earlier_ids in reversed(self._told):
            if ids and ids[0] in earlier_ids:
                left_out, added_ids = _difference(earlier_ids, ids)
                if len(added_ids) > len(ids) // 2:
                    return None
                changes = RowChanges(left_out, added_ids, plan.new_rows, plan.released_ids)
                return ExecuteNext(call_id, earlier_call_id, plan.step, pack_columns(plan), changes)
        return None


class PlanReader:
    """A rank's end: makes every plan whole again. It remembers the rows of the last plans, and nothing else."""

    def __init__(self) -> None:
        self._heard: dict[int, list[str]] = {}

    def heard(self, command: Command) -> Command:
        """The command, a plan whole. WireError for one that is told by a plan that did not come here."""
        if isinstance(command, ExecuteNext):
            command = ExecuteModel(command.call_id, self._whole(command))
        if isinstance(command, ExecuteModel):
            self._heard[command.call_id] = _rows_after(command.plan)
            if len(self._heard) > NUM_PLANS_KEPT:
                del self._heard[next(iter(self._heard))]
        return command

    def _whole(self, command: ExecuteNext) -> StepPlan:
        changes = command.changes or _NO_CHANGES
        ids = self._ids(command, changes)
        try:
            columns = unpack_columns(command.columns, len(ids), len(changes.new_rows) + len(ids))
        except ValueError as error:
            raise WireError("type", str(error)) from None
        plan = StepPlan(command.step, changes.new_rows, ids, *columns, changes.released_ids)
        check_plan(plan)
        return plan

    def _ids(self, command: ExecuteNext, changes: RowChanges) -> list[str]:
        earlier = self._heard.get(command.earlier_call_id)
        if earlier is None:
            raise WireError(
                "type", f"call {command.call_id} is told by call {command.earlier_call_id}, which is not here"
            )
        if not changes.left_out and not changes.added_ids:
            return earlier
        left_out = set(changes.left_out)
        kept = [request_id for place, request_id in enumerate(earlier) if place not in left_out]
        if len(kept) + len(changes.left_out) != len(earlier):
            raise WireError("type", "rows are left out that are not there")
        return kept + changes.added_ids


def _rows_after(plan: StepPlan) -> list[str]:
    """The rows that the next plan may go on with, in the order that the scheduler has them: the new ones last."""
    if not plan.new_rows:
        return plan.running_ids
    return plan.running_ids + [row.request_id for row in plan.new_rows]


def _difference(earlier: Sequence[str], ids: list[str]) -> tuple[list[int], list[str]]:
    """Places in `earlier` to leave out, and what to put after the rest, so that `ids` comes of it."""
    left_out, num_kept = [], 0
    for place, request_id in enumerate(earlier):
        if num_kept < len(ids) and ids[num_kept] == request_id:
            num_kept += 1
        else:
            left_out.append(place)
    return left_out, ids[num_kept:]
