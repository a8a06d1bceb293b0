"""A sequence for the waterfall: its intervals relative to its first byte, its moments, and its steps in runs."""

from typing import Any, NamedTuple

from vllm_obs.dashboard.request_rows import Row

MAX_INTERVALS = 400
"""More are drawn together: no screen shows more."""
PREFILL, DECODE, RECOMPUTE = range(3)
KIND_WORDS = ("prefill", "decode", "recompute")


class StepRun(NamedTuple):
    """Steps that follow one another and computed equally many of its tokens, for the same purpose."""

    first_step: int
    num_steps: int
    num_tokens: int
    kind: int

    @property
    def last_step(self) -> int:
        """The last of them."""
        return self.first_step + self.num_steps - 1


class Piece(NamedTuple):
    """So long it was in a stage; of several drawn together the longest one's stage and reason."""

    stage: str
    begun_at: int
    ended_at: int
    reason: str
    num_together: int = 1

    @property
    def length(self) -> int:
        """In nanoseconds."""
        return self.ended_at - self.begun_at


def lane_of(row: Row) -> Row:
    """The sequence as the script draws it; all moments are nanoseconds since its first byte came."""
    begun = row["received_at"]
    pieces = pieces_of(row)
    return {
        "name": row["request_id"],
        "label": row["external_id"] or row["request_id"],
        "sequence": row["sequence_index"],
        "is_live": row["state"] != "ended",
        "num_intervals": len(row["intervals"]["stages"]),
        "pieces": [[p.stage, p.begun_at - begun, p.ended_at - begun, p.reason, p.num_together] for p in pieces],
        "stage_ns": {stage: length for stage, length in row["stage_ns"].items() if length},
    }


def pieces_of(row: Row) -> list[Piece]:
    """Its intervals; of too many the short neighbours of one stage are put together."""
    columns = row["intervals"]
    pieces = [
        Piece(*values)
        for values in zip(
            columns["stages"], columns["begun_at"], columns["ended_at"], columns["reasons"], strict=True
        )
    ]
    if len(pieces) <= MAX_INTERVALS:
        return pieces
    shortest = (pieces[-1].ended_at - pieces[0].begun_at) / MAX_INTERVALS
    together: list[Piece] = []
    for piece in pieces:
        if together and together[-1].length < shortest and _fit(together[-1], piece, shortest):
            together[-1] = _joined(together[-1], piece)
        else:
            together.append(piece)
    return together


def _fit(before: Piece, piece: Piece, shortest: float) -> bool:
    return before.stage == piece.stage or piece.length < shortest


def _joined(before: Piece, piece: Piece) -> Piece:
    longer = max(before, piece, key=lambda each: each.length)
    num_together = before.num_together + piece.num_together
    return Piece(longer.stage, before.begun_at, piece.ended_at, longer.reason, num_together)


def marks_of(row: Row, held: Row | None) -> list[Any]:
    """Moments to mark: the first token, and the step at which the page is held."""
    begun, marks = row["received_at"], []
    if row["first_token_at"]:
        marks.append([row["first_token_at"] - begun, "first token"])
    if held is not None and held["schedule_begun_at"] >= begun:
        marks.append([held["schedule_begun_at"] - begun, f"step {held['step']}"])
    return marks


def step_runs(row: Row) -> list[StepRun]:
    """Its kept steps in runs, oldest first."""
    columns, num_prompt, high = row["steps"], row["num_prompt_tokens"], 0
    runs: list[StepRun] = []
    for step, num_tokens, num_computed in zip(
        columns["step"], columns["num_scheduled_tokens"], columns["num_computed_tokens"], strict=True
    ):
        kind = _kind(num_computed, high, num_prompt)
        high = max(high, num_computed + num_tokens)
        last = runs[-1] if runs else None
        if last is not None and (last.last_step + 1, last.num_tokens, last.kind) == (step, num_tokens, kind):
            runs[-1] = last._replace(num_steps=last.num_steps + 1)
        else:
            runs.append(StepRun(step, 1, num_tokens, kind))
    return runs


def _kind(num_computed: int, high: int, num_prompt: int) -> int:
    if num_computed < high:
        return RECOMPUTE
    return PREFILL if num_computed < num_prompt else DECODE
