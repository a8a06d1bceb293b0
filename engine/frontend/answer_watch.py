"""AnswerWatch: whether the model still gives numbers, judged by the engine's last answers."""

import logging
import time
from collections.abc import Callable

from vllm_obs.engine.messages import EngineCoreOutputs

MAX_BROKEN_ANSWERS = 3
REST_SECONDS = 15.0
"""How long a broken model is left alone; then requests may try it again, and one more broken answer is enough."""

logger = logging.getLogger(__name__)


class AnswerWatch:
    """Told of every step's outputs. A model is broken that gave numbers to nobody, so many steps in a row.

    One token or vector for anybody mends it at once: a single request that breaks its own row breaks nothing else.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_broken = 0
        self._rests_until = 0.0

    @property
    def is_broken(self) -> bool:
        """Whether nobody should be sent to this model now."""
        return self._num_broken >= MAX_BROKEN_ANSWERS and self._clock() < self._rests_until

    def saw(self, outputs: EngineCoreOutputs) -> None:
        """One step's outputs came."""
        if len(outputs.new_token_ids) or outputs.pooled:
            self._num_broken = 0
        elif outputs.errors and any(reason == "invalid_logits" for _, reason, _ in outputs.errors):
            self._num_broken += 1
            if self._num_broken >= MAX_BROKEN_ANSWERS:
                self._rests_until = self._clock() + REST_SECONDS
                logger.error("the model gave no numbers %d times in a row: not ready", self._num_broken)
