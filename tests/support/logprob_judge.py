"""Log-probabilities that a server tells, held against those of the reference to 1e-4."""

from typing import Any

import numpy as np
import pytest
from reference_smollm2 import ReferenceModel

TOLERANCE = 1e-4


class LogprobJudge:
    """Knows the default model. A token is named token_id:N, and has at least four others beside it."""

    def __init__(self) -> None:
        self._model = ReferenceModel()

    def check(self, prompt: list[int], output: list[int], entries: list[Any], prompt_entries: list[Any]) -> None:
        """What is told of each token of the output, by tokens; of those of the prompt, by their ids, with ranks.

        Of the prompt's first there is nothing to tell.
        """
        rows = self._model.logprobs(prompt + output)
        said = rows[len(prompt) - 1 : -1]
        assert len(said) == len(entries)
        for row, entry in zip(said, entries, strict=True):
            self.check_position(row, {int(name.removeprefix("token_id:")): told for name, told in entry.items()})
        assert prompt_entries[0] is None
        for row, entry, token in zip(rows, prompt_entries[1:], prompt[1:], strict=False):
            self.check_position(row, {int(name): told["logprob"] for name, told in entry.items()})
            rank, own = entry[str(token)]["rank"], row[token]
            assert (row > own + TOLERANCE).sum() < rank <= (row > own - TOLERANCE).sum() + 1

    def check_position(self, row: np.ndarray, told: dict[int, float]) -> None:
        """One position, by token ids: the best of them are the best there are."""
        assert told == {token: pytest.approx(row[token], abs=TOLERANCE) for token in told}
        best = np.sort(row)[::-1][:4]
        assert sorted(told.values(), reverse=True)[:4] == pytest.approx(best, abs=TOLERANCE)
