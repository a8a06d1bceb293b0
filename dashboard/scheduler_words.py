"""The scheduler's words in plain English: why a request waits, what limits a step, and one step told whole."""

from typing import Any

from vllm_obs.dashboard.figures import count, nanoseconds, number, seconds
from vllm_obs.dashboard.frame import code, escape

REASON_WORDS: dict[str, str] = {
    "max_num_seqs": "all places among the running are taken",
    "token_budget": "the step's token budget is spent",
    "prefill_share": "a step in which others decode takes no more prompt tokens",
    "kv_blocks": "there are not enough free KV blocks",
    "grammar": "its grammar is being compiled",
    "lora_slots": "all LoRA slots are taken",
    "remote_kv": "its KV blocks are on their way from elsewhere",
    "priority": "requests of a higher priority go first",
    "paused": "the engine is paused",
    "step_in_progress": "the step in progress has to end first",
    "head_of_line": "it stands behind the head of the line",
}
"""Why a request waits → the rest of a sentence."""

LIMIT_WORDS: dict[str, str] = {
    "paused": "the engine is paused",
    "priority": "requests of a higher priority took the place of others",
    "kv_blocks": "KV blocks: the next would not have found enough",
    "max_num_seqs": "places among the running (max_num_seqs)",
    "token_budget": "the token budget (max_num_batched_tokens)",
    "prefill_share": "prompt tokens beside those that decode (max_num_mixed_prefill_tokens)",
    "waiting_on_remote_kv": "KV blocks that come from elsewhere",
    "lora_slots": "LoRA slots",
    "waiting_on_grammar": "a grammar that is being compiled",
    "preemption": "KV blocks: a running request had to give its own back",
    "underloaded": "nothing: one more request would have been let in",
    "other": "something that has no name here",
}
"""What kept a step from taking in more → words."""

EXECUTION_WORDS: dict[str, str] = {
    "no_gpu": "eagerly: no GPU",
    "enforce_eager": "eagerly: --enforce-eager",
    "attention_backend": "eagerly: the attention backend has no graphs",
    "capture_failed": "eagerly: no graph could be captured",
    "prompt_tokens": "eagerly: it has prompt tokens",
    "batch_size": "eagerly: more rows than the largest graph",
}
"""Why a rank ran its part of a step kernel by kernel → words."""

HELP: dict[str, str] = {
    "max_num_seqs": "A higher `--max-num-seqs` lets more run at once, if there are KV blocks for them.",
    "token_budget": "A higher `--max-num-batched-tokens` takes in more prompt tokens a step; steps get longer.",
    "prefill_share": "A higher `--max-num-mixed-prefill-tokens` starts prompts sooner; others' tokens come later.",
    "kv_blocks": "More KV memory, shorter contexts or fewer running requests (`--max-num-seqs`) help.",
    "paused": "`POST /resume` lets it go on.",
}
"""What helps against a reason, where there is something."""


def reason_words(reason: str) -> str:
    """Why, as the rest of a sentence; what a newer engine wrote stays its own word."""
    return REASON_WORDS.get(reason, reason.replace("_", " ") or "the scheduler has not looked at it yet")


def execution_words(worker: dict[str, Any]) -> str:
    """How a rank ran its part of a step; a run recorded long ago does not say."""
    size, padded = worker.get("graph_size", 0), worker.get("num_padded_tokens", 0)
    if size:
        return f"CUDA graph of {count(size, 'row')}" + (f", {number(padded)} empty" if padded else "")
    reason = str(worker.get("eager_reason", ""))
    return EXECUTION_WORDS.get(reason, f"eagerly: {reason.replace('_', ' ')}" if reason else "")


def _reason(reason: str) -> str:
    """The same for Markdown."""
    return REASON_WORDS.get(reason) or escape(reason_words(reason))


def head_sentence(queues: dict[str, Any]) -> str:
    """Why the line stands, in a sentence, and what helps."""
    num_waiting, reason = queues["num_waiting"], queues["head_reason"]
    if not num_waiting:
        return "Nobody waits in the scheduler's line."
    who = "One request waits" if num_waiting == 1 else f"{number(num_waiting)} requests wait"
    help_words = f" {HELP[reason]}" if reason in HELP else ""
    why = f"**{_reason(reason)}** ({code(reason or 'unknown')})"
    return f"{who}. The head of the line waits because {why}.{help_words}"


def step_sentences(step: dict[str, Any], budget: int, num_waiting: int | None = None) -> list[str]:
    """One step of `/inspect/steps/N` in sentences (Markdown). `budget` 0: not known."""
    planned, answered, failed = step["planned"], step["answered"], step["failed"]
    said = [_batch_sentence(planned, budget), *_change_sentences(planned)]
    waiting = planned["num_waiting"] if num_waiting is None else num_waiting
    said.append(_waiting_sentence(planned, waiting))
    said.append(_limit_sentence(step["binding_limit"]))
    if answered is not None:
        said.append(_time_sentence(step))
        said.append(_answer_sentence(answered))
    elif failed is not None:
        said.append(f"It **failed**: {code(str(failed['error']))}.")
    elif planned["request_ids"]:
        said.append("It has not answered yet.")
    return said


def _limit_sentence(limit: str) -> str:
    if limit == "underloaded":
        return "Nothing limited it: one more request would have been let in."
    return f"Its limit: {LIMIT_WORDS.get(limit) or escape(limit)}."


def _batch_sentence(planned: dict[str, Any], budget: int) -> str:
    num_tokens = sum(planned["num_scheduled_tokens"])
    if not planned["request_ids"]:
        return "It ran nobody."
    requests, tokens = count(len(planned["request_ids"]), "request"), count(num_tokens, "token")
    of_budget = f" of a budget of {number(budget)}" if budget else ""
    cached = sum(planned["admitted_cached_tokens"])
    found = f"; {count(cached, 'token')} more came from the prefix cache" if cached else ""
    return f"It ran **{requests}** with **{tokens}**{of_budget}{found}."


def _change_sentences(planned: dict[str, Any]) -> list[str]:
    said = []
    if num := len(planned["admitted_ids"]):
        said.append(f"{count(num, 'request')} came in from the line.")
    if num := len(planned["resumed_ids"]):
        said.append(f"{count(num, 'request')} came back after preemption.")
    if num := len(planned["preempted_ids"]):
        said.append(f":red[{count(num, 'request')} had to give up KV blocks] and wait again.")
    if num := len(planned["left_out_ids"]):
        reasons = ", ".join(sorted({_reason(reason) for reason in planned["left_out_reasons"]}))
        said.append(f"{count(num, 'running request')} sat it out: {reasons}.")
    return said


def _waiting_sentence(planned: dict[str, Any], num_waiting: int) -> str:
    if not num_waiting:
        return f"{count(planned['num_running'], 'request')} ran and nobody waited."
    why = _reason(planned["head_reason"])
    return f"{count(planned['num_running'], 'request')} ran and {number(num_waiting)} waited: {why}."


def _time_sentence(step: dict[str, Any]) -> str:
    planned, answered = step["planned"], step["answered"]
    took = nanoseconds(answered["updated_at"] - planned["schedule_begun_at"])
    floor = step["floor_seconds"]
    return f"It took **{took}**" + (f"; as much work was seen to take {seconds(floor)} at best." if floor else ".")


def _answer_sentence(answered: dict[str, Any]) -> str:
    num_new, wasted = sum(answered["num_new_tokens"]), answered["num_wasted_rows"]
    vain = "was computed in vain, for a request" if wasted == 1 else "were computed in vain, for requests"
    tail = f"; {count(wasted, 'row')} {vain} that had ended" if wasted else ""
    return f"It gave {count(num_new, 'new token')}{tail}."
