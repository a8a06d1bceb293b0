"""GrammarState: where one sequence stands in its grammar, from the order to compile it to its last token."""

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.structured.compiler import Compiled

LEFT = "doesn't satisfy the grammar"
"""What llguidance says of a token that its own mask did not allow; everything else are its limits."""


class GrammarState:
    """Made when the sequence arrives; it may be scheduled once `is_ready`. Errors are for that sequence only."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._matcher: LLMatcher | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the grammar is compiled, or cannot be."""
        return self._compiled.done()

    @property
    def is_over(self) -> bool:
        """Whether no token but an end of sequence may follow."""
        return self._matcher is not None and self._matcher.is_stopped()

    def begin(self) -> None:
        """Stand at the beginning. RequestError when there is no such grammar."""
        try:
            self._matcher = self._compiled.result(0).deep_copy()
        except RequestError:
            raise
        except Exception as error:
            raise RequestFailedError("The grammar could not be compiled.") from error

    def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
        """Write the tokens that may come next, one bit each, into int32 (ceil(vocab / 32),) at this address.

        To ask an array for its address takes as long as most masks do, so the whole step's is asked once.
        """
        assert self._matcher is not None, "begin comes first"
        self._matcher.unsafe_compute_mask_ptr(address, words.nbytes)

    def accept(self, token_id: int) -> None:
        """The sequence has this token now. RequestFailedError when the grammar has no such place, or is too large.

        How much work a grammar is shows as it is followed: `compiler.LIMITS` end what no one would wait for.
        """
        assert self._matcher is not None, "begin comes first"
        if not self._matcher.consume_token(token_id):
            if LEFT in self._matcher.get_error():
                raise RequestFailedError("The output left its grammar.")
            raise RequestFailedError("Following the grammar takes too much work.", "unsupported")
