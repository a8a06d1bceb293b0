"""StepDecisions: who came and went with a step, and why others were left out."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from vllm_obs.engine.request import Request
from vllm_obs.telemetry.records import WaitReason


@dataclass
class StepDecisions:
    """Who came and went with a plan, and why others were left out.

    `left_out_ids` are running sequences, `left_out_reasons` runs parallel; `head_reason` is the waiting
    queue's head's, empty when nobody waits. `grammar_ids` are not in the queue yet: their grammars are compiled.
    """

    admitted_ids: list[str] = field(default_factory=list)
    admitted_cached_tokens: list[int] = field(default_factory=list)
    resumed_ids: list[str] = field(default_factory=list)
    preempted_ids: list[str] = field(default_factory=list)
    left_out_ids: list[str] = field(default_factory=list)
    left_out_reasons: list[WaitReason] = field(default_factory=list)
    head_reason: WaitReason | Literal[""] = ""
    grammar_ids: list[str] = field(default_factory=list)

    def leave_out(self, requests: Iterable[Request], reason: WaitReason) -> None:
        """Write the reason of running sequences that this step does not run."""
        for request in requests:
            self.left_out_ids.append(request.request_id)
            self.left_out_reasons.append(reason)
