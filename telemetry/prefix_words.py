"""Why a sequence found so much in the prefix cache and no more: the reason as a word, and in a sentence."""

from itertools import groupby
from typing import Any, NamedTuple

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.explain_words import count
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ledger_tokens import tokens_held
from vllm_obs.telemetry.prefix_book import Origin, PrefixStory

MAX_MAKERS = 8


class _Prefix(NamedTuple):
    """An admission: so many blocks were found of the `num_findable` that could have been."""

    story: PrefixStory
    num_tokens: int
    num_computed: int
    block_size: int
    num_findable: int

    @property
    def place(self) -> str:
        """Which block was the first not to be found, with its tokens, counted from 1."""
        begin = self.story.num_hits * self.block_size
        return f"block {self.story.num_hits + 1} (tokens {begin + 1} to {begin + self.block_size})"


def prefix_document(engine: EngineState, ledger: SequenceLedger) -> dict[str, Any]:
    """What a sequence found when it was last admitted, who made it, and why it was not more.

    `stopped` is all_found, too_short, evicted, computed_at_once, not_computed_yet, never_seen, disabled,
    not_admitted or unknown.
    """
    story = engine.prefixes.story(ledger.request_id)
    described = engine.described
    block_size = described.block_size if described is not None else 0
    document: dict[str, Any] = {"num_hit_blocks": 0, "num_findable_blocks": None, "step": None, "makers": []}
    if described is not None and not described.enable_prefix_caching:
        return document | {"stopped": "disabled", "says": "Prefix caching is off: nothing is looked for."}
    if story is None or not block_size:
        return document | _without_story(ledger)
    prefix = _prefix_of(story, ledger, block_size)
    stopped, says = _why_it_stopped(engine, prefix)
    return {
        "num_hit_blocks": story.num_hits,
        "num_findable_blocks": prefix.num_findable,
        "step": story.step,
        "makers": makers_of(story),
        "stopped": stopped,
        "says": " ".join([_what_was_found(prefix), says]),
    }


def makers_of(story: PrefixStory) -> list[dict[str, Any]]:
    """Runs of found blocks that the same sequence made, in order, MAX_MAKERS at most."""
    makers, first = [], 0
    for request_id, run in groupby(story.origins, key=lambda origin: origin.request_id):
        origins = list(run)
        makers.append(
            {
                "request_id": request_id,
                "first_block": first,
                "num_blocks": len(origins),
                "first_step": min(origin.step for origin in origins),
            }
        )
        first += len(origins)
    return makers[:MAX_MAKERS]


def _without_story(ledger: SequenceLedger) -> dict[str, str]:
    if not ledger.first_step:
        return {
            "stopped": "not_admitted",
            "says": "Its blocks are looked for when it is admitted.",
        }
    return {"stopped": "unknown", "says": "Its admission was too long ago, or its records were lost."}


def _prefix_of(story: PrefixStory, ledger: SequenceLedger, block_size: int) -> _Prefix:
    num_tokens = ledger.submitted.num_prompt_tokens
    if story.step > ledger.first_step > 0:
        # It came back from preemption, with what it had sampled as part of what is known.
        num_tokens = max(num_tokens, ledger.num_computed_high)
    num_findable = max(story.num_hits, (num_tokens - 1) // block_size)
    return _Prefix(story, num_tokens, tokens_held(ledger) or 0, block_size, num_findable)


def _what_was_found(prefix: _Prefix) -> str:
    story = prefix.story
    if not story.num_hits:
        return "Nothing of it was found in the prefix cache."
    found = f"{count(story.num_hits, 'block')} ({count(story.num_hits * prefix.block_size, 'token')}) of the "
    names = [origin.request_id for origin in story.origins if origin.request_id]
    made = f", made by {_names(names)}" if names else ", made longer ago than is remembered"
    return f"{found}{prefix.num_findable} that could be were found in the prefix cache{made}."


def _names(names: list[str]) -> str:
    different = list(dict.fromkeys(names))
    shown = ", ".join(f"`{name}`" for name in different[:2])
    return shown + (f" and {len(different) - 2} more" if len(different) > 2 else "")


def _why_it_stopped(engine: EngineState, prefix: _Prefix) -> tuple[str, str]:
    story = prefix.story
    if not prefix.num_findable:
        return "too_short", (
            f"Its {count(prefix.num_tokens, 'token')} fill no block of {prefix.block_size} before the last token, "
            "which is always computed."
        )
    if story.num_hits >= prefix.num_findable:
        return "all_found", _what_is_never_found(prefix)
    if story.earlier is not None:
        return "evicted", _evicted(prefix, story.earlier)
    if story.miss_hash:
        return "never_seen", _never_seen(engine, prefix)
    return _not_cached(engine, prefix)


def _what_is_never_found(prefix: _Prefix) -> str:
    num_rest = prefix.num_tokens - prefix.num_findable * prefix.block_size
    if num_rest == prefix.block_size:
        return "The last block was computed all the same, because the last token's logits are wanted."
    return f"The last {count(num_rest, 'token')} only partly fill a block, and such blocks are never shared."


def _evicted(prefix: _Prefix, earlier: Origin) -> str:
    maker = f"`{earlier.request_id}`" if earlier.request_id else "a request that is not remembered"
    if earlier.evicted_step and earlier.evicted_step <= prefix.story.step:
        num_before = prefix.story.step - earlier.evicted_step
        when = f"{count(num_before, 'step')} before" if num_before else "in that very step"
        return (
            f"It stopped at {prefix.place}: {maker} had made it in step {earlier.step}, and it was evicted in "
            f"step {earlier.evicted_step}, {when}, to make room."
        )
    return f"It stopped at {prefix.place}: {maker} made the same, but not before step {earlier.step}."


def _never_seen(engine: EngineState, prefix: _Prefix) -> str:
    since = engine.prefixes.first_step
    known = f" since step {since}" if since else ""
    if prefix.story.num_hits:
        last = prefix.story.origins[-1].request_id
        other = f"; `{last}` goes on otherwise from there, or ends" if last else ""
        return f"It stopped at {prefix.place}: nobody had made that block{known}{other}."
    return (
        f"Nobody had made its first block{known}: its first {prefix.block_size} tokens are new, or its cache salt "
        "is another."
    )


def _not_cached(engine: EngineState, prefix: _Prefix) -> tuple[str, str]:
    is_filled = prefix.num_computed >= (prefix.story.num_hits + 1) * prefix.block_size
    if not engine.blocks.is_exact:
        return "unknown", f"Why it stopped at {prefix.place} is not known: records were lost."
    if not is_filled:
        return (
            "not_computed_yet",
            f"It stopped at {prefix.place}, which is not computed yet.",
        )
    return "computed_at_once", (
        f"It stopped at {prefix.place}: by the time it was computed somebody else had made the same. Both were "
        "computed at once, or this request may not read the cache (prompt logprobs)."
    )
