"""What a client is told that did not read its outputs: one ending for each sequence, in place of what waited."""

import contextlib
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue

from vllm_obs.engine.messages import EngineCoreOutputs, FinishReason

MAX_OUTBOX_MESSAGES = 4096
"""Steps whose outputs wait for one client behind its socket, which holds twice as many; then it is cut off."""
ROWS_A_MESSAGE = 4096
CUT_OFF = ("stalled", "the outputs of this request were not read in time")


def drain(outbox: SimpleQueue[EngineCoreOutputs | None]) -> list[EngineCoreOutputs]:
    """Everything that waits, in order."""
    waiting: list[EngineCoreOutputs] = []
    with contextlib.suppress(Empty):
        while True:
            outputs = outbox.get_nowait()
            if outputs is not None:
                waiting.append(outputs)
    return waiting


def last_words(
    unread: list[EngineCoreOutputs], live_ids: Iterable[str], blank: EngineCoreOutputs, max_answers: int
) -> Iterator[EngineCoreOutputs]:
    """An error for every sequence that is live or lost a row, and the last `max_answers` of utility calls."""
    rows = (request_id for outputs in unread for request_id in outputs.request_ids)
    request_ids = list(dict.fromkeys([*rows, *live_ids]))
    for begin in range(0, len(request_ids), ROWS_A_MESSAGE):
        yield failed_rows(blank, request_ids[begin : begin + ROWS_A_MESSAGE], CUT_OFF)
    answers = [outputs.utility for outputs in unread if outputs.utility is not None]
    for answer in answers[-max_answers:]:
        yield blank._replace(utility=answer)


def failed_rows(blank: EngineCoreOutputs, request_ids: list[str], failure: tuple[str, str]) -> EngineCoreOutputs:
    """`blank` with a row for each id that ends it with the failure: its reason and words for the client."""
    num_rows = len(request_ids)
    return blank._replace(
        request_ids=request_ids,
        num_new_tokens=[0] * num_rows,
        finish_reasons=[int(FinishReason.ERROR)] * num_rows,
        stop_token_ids=[-1] * num_rows,
        num_cached_tokens=[0] * num_rows,
        errors=[(row, *failure) for row in range(num_rows)],
    )
