"""Explains one sequence: its ledger in plain words, the largest part of its time first."""

from collections.abc import Sequence
from typing import NamedTuple

from vllm_obs.telemetry.explain_step import inbox_words, step_sentence
from vllm_obs.telemetry.explain_words import count, duration, times
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.stages import WAIT_STAGES, Interval
from vllm_obs.telemetry.step_history import StepHistory

MAX_PARTS = 3
MIN_SHARE = 0.10
"""A part of the time that is smaller is left out of the first sentence, unless it is the largest."""

_REASONS = {
    "max_num_seqs": "waiting for a place among the running",
    "token_budget": "waiting for a share of the step's tokens",
    "prefill_share": "waiting while those that decode go on",
    "kv_blocks": "waiting for KV blocks",
    "grammar": "waiting for its grammar",
    "lora_slots": "waiting for a LoRA slot",
    "remote_kv": "waiting for KV from another host",
    "priority": "waiting for requests of higher priority",
    "paused": "waiting while the engine was paused",
    "step_in_progress": "waiting for the step in progress",
    "head_of_line": "waiting in line",
}
_STAGES = {
    "receive": "receiving the request",
    "render": "rendering the chat template",
    "tokenize": "tokenizing",
    "submit": "the way to the engine",
    "recompute": "computing again what a preemption had thrown away",
    "return": "the way back from the engine",
    "detokenize": "making text",
    "deliver": "delivering to the client",
}
_ENDINGS = {
    "abort": "It was aborted",
    "error": "It failed",
    "length": "It ended at its token limit",
    "stop": "It ended by itself",
    "repetition": "It was ended for repeating itself",
}


class Ahead(NamedTuple):
    """How many other sequences of the engine were running, and waiting before this one, as it was queued."""

    num_running: int
    num_waiting: int

    @property
    def total(self) -> int:
        """All it had to wait behind."""
        return self.num_running + self.num_waiting


class Part(NamedTuple):
    """A part of a sequence's time, in words and nanoseconds."""

    words: str
    length_ns: int


def explain(
    ledger: SequenceLedger,
    intervals: Sequence[Interval],
    ahead: Ahead | None = None,
    steps: StepHistory | None = None,
    costs: Sequence[str] = (),
) -> list[str]:
    """Sentences on one sequence. `intervals` are its ledger's, up to now where it still lives.

    `ahead` is None where those before it are no longer known, `steps` where its engine's are not. `costs` are
    sentences on what it cost.
    """
    told = [
        _time_sentence(ledger, time_parts(ledger, intervals, ahead, steps)),
        step_sentence(ledger, intervals, steps) if steps is not None else "",
        _preemption_sentence(ledger, intervals),
        _cache_sentence(ledger),
        _company_sentence(ledger),
        *costs,
        _ending_sentence(ledger),
        "Records about it were lost, so these numbers are what is left of them." if ledger.is_partial else "",
    ]
    return [sentence for sentence in told if sentence]


def time_parts(
    ledger: SequenceLedger,
    intervals: Sequence[Interval],
    ahead: Ahead | None,
    steps: StepHistory | None = None,
) -> list[Part]:
    """All of a sequence's time, the largest part first; its waits are told by their reasons, over all stages."""
    lengths: dict[str, int] = {}
    in_inbox = inbox_words(intervals, steps)
    for interval in intervals:
        is_inbox = interval.stage == "submit" and interval.reason
        words = in_inbox if is_inbox else _words(interval, ledger, ahead)
        lengths[words] = lengths.get(words, 0) + interval.num_ns
    parts = [Part(words, length_ns) for words, length_ns in lengths.items() if length_ns > 0]
    return sorted(parts, key=lambda part: -part.length_ns)


def _time_sentence(ledger: SequenceLedger, parts: list[Part]) -> str:
    if not parts:
        return "No time has passed in it yet."
    total_ns = sum(part.length_ns for part in parts)
    shown = [parts[0]] + [part for part in parts[1:MAX_PARTS] if part.length_ns >= MIN_SHARE * total_ns]
    total = duration(total_ns) if ledger.state == "ended" else f"the {duration(total_ns)} so far"
    first = f"{_share(shown[0], total_ns)} of {total} was {shown[0].words}"
    rest = [f"{_share(part, total_ns)} ({duration(part.length_ns)}) {part.words}" for part in shown[1:]]
    return "; ".join([first, *rest]) + "."


def _preemption_sentence(ledger: SequenceLedger, intervals: Sequence[Interval]) -> str:
    if not ledger.num_preemptions:
        return ""
    lost_ns = sum(interval.num_ns for interval in intervals if interval.stage in ("preempted", "recompute"))
    tokens = count(ledger.num_recomputed_tokens, "token")
    return (
        f"It was preempted {times(ledger.num_preemptions)} and had {tokens} computed again, "
        f"which cost {duration(lost_ns)}."
    )


def _cache_sentence(ledger: SequenceLedger) -> str:
    num_prompt, num_cached = ledger.submitted.num_prompt_tokens, ledger.num_cached_tokens
    if not ledger.num_steps:
        return ""
    if not num_cached:
        return f"None of its {count(num_prompt, 'prompt token')} came from the prefix cache."
    return f"{num_cached} of its {count(num_prompt, 'prompt token')} came from the prefix cache."


def _company_sentence(ledger: SequenceLedger) -> str:
    if not ledger.num_steps:
        return ""
    steps = f"{count(ledger.num_steps, 'step')} ({ledger.first_step} to {ledger.last_step})"
    if ledger.peak_company <= 1:
        return f"It ran alone, in {steps}."
    return (
        f"It ran in {steps}, in batches of {ledger.mean_company:.1f} on average and {ledger.peak_company} at most."
    )


def _ending_sentence(ledger: SequenceLedger) -> str:
    if ledger.is_abandoned:
        tokens = count(ledger.num_output_tokens, "output token")
        return f"Its API server died before it had ended, after {tokens}; what is told is until the last step."
    if ledger.ended is None:
        return ""
    ended = ledger.ended
    ending = _ENDINGS.get(ended.finish_reason, f"It ended ({ended.finish_reason})")
    after = f" after {count(ended.num_output_tokens, 'output token')}"
    return f"{ending}{after}: {ended.error}." if ended.error else f"{ending}{after}."


def _words(interval: Interval, ledger: SequenceLedger, ahead: Ahead | None) -> str:
    if interval.stage in WAIT_STAGES:
        # Those before it in the queue are not those it waits for later, out of it.
        return _wait_words(interval.reason, ahead if interval.stage == "queue" else None)
    return _stage_words(interval.stage, ledger)


def _wait_words(reason: str, ahead: Ahead | None) -> str:
    words = _REASONS.get(reason, f"waiting ({reason or 'reason unknown'})")
    if (
        ahead is not None
        and ahead.total
        and reason in ("kv_blocks", "max_num_seqs", "token_budget", "prefill_share", "head_of_line")
    ):
        return f"{words} behind {count(ahead.total, 'request')}"
    return words


def _stage_words(stage: str, ledger: SequenceLedger) -> str:
    if stage == "prefill":
        return f"computing {count(ledger.num_prefill_computed_tokens, 'prompt token')}"
    if stage == "decode":
        return f"decoding {count(ledger.num_output_tokens, 'output token')}"
    return _STAGES.get(stage, stage)


def _share(part: Part, total_ns: int) -> str:
    return f"{100 * part.length_ns / total_ns:.0f} %"
