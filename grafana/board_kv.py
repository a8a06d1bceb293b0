"""KV_CACHE: who holds blocks, what is lost to them, what is found again, and what preemption costs."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.colours import BLOCKS, LOST, SOURCES
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    average,
    buckets,
    engine,
    highest,
    quantile,
    rate,
    server,
    share,
    total,
)
from vllm_obs.grafana.row_verdict import VERDICT

_USAGE = engine("vllm:kv_cache_usage_perc")
_HITS = engine("vllm:prefix_cache_hits_total")
_LOOKED_UP = engine("vllm:prefix_cache_queries_total")
_BY_ENGINE = ("instance", "engine")
_ENGINE_NAME = "{{instance}} engine {{engine}}"

_BLOCKS = Row(
    "Blocks",
    (
        Panel(
            "In use",
            Says(
                "Is the cache full?",
                "the share of blocks that a sequence holds, by engine.",
                "below 90 %. Full while nobody waits is fine too.",
                "KV cache: Waiting for blocks",
            ),
            (Query(highest(_USAGE, *_BY_ENGINE), _ENGINE_NAME),),
            unit="percentunit",
            levels=Levels(0.9, 0.98),
            page="kv",
        ),
        Panel(
            "Blocks by state",
            Says(
                "Who has the blocks?",
                "blocks that are held, cached (free to evict), and empty.",
                "free ones or cached ones left. Only active ones: the next sequence waits or preempts.",
                "KV cache: Preemptions",
            ),
            (Query(total(engine("vllm_obs_kv_blocks"), "state"), "{{state}}"),),
            colours=BLOCKS,
            page="kv",
            is_stacked=True,
        ),
        Panel(
            "Lost to unfilled blocks",
            Says(
                "How much of what is held is empty?",
                "the share of blocks held, less the share of token slots filled; mean over engines.",
                "a few percent: half a block for each running sequence. More: blocks are too large.",
                "KV cache: Tokens held",
            ),
            (
                Query(average(_USAGE), "blocks held"),
                Query(average(engine("vllm_obs_kv_token_occupancy_ratio")), "token slots filled"),
            ),
            unit="percentunit",
            page="kv",
        ),
        Panel(
            "Tokens held",
            Says(
                "How much context do the running sequences have?",
                "token slots that hold a sequence's keys and values, by engine.",
                "below the size of the cache in the table beside it.",
                "KV cache: Layout",
            ),
            (Query(total(engine("vllm_obs_kv_tokens"), *_BY_ENGINE), _ENGINE_NAME),),
            unit="suffix: tok",
            page="kv",
        ),
        Panel(
            "Layout",
            Says(
                "How large is the cache?",
                "labels of vllm:cache_config_info: blocks, block size, tokens, type.",
                "the same on all engines.",
                "KV cache: In use",
            ),
            (
                Query(
                    highest(
                        server("vllm:cache_config_info", 'engine=~"$engine"'),
                        *_BY_ENGINE,
                        "num_gpu_blocks",
                        "block_size",
                        "kv_cache_size_tokens",
                        "cache_dtype",
                        "enable_prefix_caching",
                    ),
                    _ENGINE_NAME,
                    is_instant=True,
                ),
            ),
            Kind.TABLE,
            page="kv",
            width=16,
        ),
    ),
)

_PREFIXES = Row(
    "Found again",
    (
        Panel(
            "Prefix hits",
            Says(
                "How much of the prompts was known already?",
                "prompt tokens found over prompt tokens looked up, at the first admission.",
                "as high as the prompts have in common. Sudden falls: another system prompt, or evictions.",
                "KV cache: Prompt tokens by source",
            ),
            (Query(share(total(rate(_HITS), *_BY_ENGINE), total(rate(_LOOKED_UP), *_BY_ENGINE)), _ENGINE_NAME),),
            unit="percentunit",
            page="kv",
            idle="no prompt",
        ),
        Panel(
            "Prompt tokens by source",
            Says(
                "What did prompts cost?",
                "prompt tokens a second by where their keys and values came from.",
                "as little local_compute as possible.",
                "KV cache: Computed for each prompt",
            ),
            (Query(total(rate(engine("vllm:prompt_tokens_by_source_total")), "source"), "{{source}}"),),
            unit="suffix: tok/s",
            colours=SOURCES,
            page="kv",
            is_stacked=True,
        ),
        Panel(
            "Computed for each prompt",
            Says(
                "How many prompt tokens are really computed?",
                "ended sequences a second by prompt tokens that were computed, not cached.",
                "a band far below the length of prompts (Requests board).",
                "Requests: Prompt lengths",
            ),
            (Query(buckets(engine("vllm:request_prefill_kv_computed_tokens")), "{{le}}"),),
            Kind.HEAT,
            page="kv",
        ),
        Panel(
            "Computed at most",
            Says(
                "How much prefill does a costly prompt take?",
                "the chosen percentile and the median of the prompt tokens that were computed, not cached.",
                "below the token budget of a step: longer ones are cut into chunks.",
                "Engine: Tokens of a step",
            ),
            (
                Query(
                    quantile(PERCENTILE, engine("vllm:request_prefill_kv_computed_tokens")),
                    "${percentile:text}",
                ),
                Query(quantile("0.5", engine("vllm:request_prefill_kv_computed_tokens")), "median"),
            ),
            unit="suffix: tok",
            page="kv",
            idle="no request ended",
        ),
        Panel(
            "Saved tokens",
            Says(
                "How much work did the cache save?",
                "prompt tokens a second that were not computed, by the tier that has them.",
                "device; there is no other tier in this engine.",
                "KV cache: Prefix hits",
            ),
            (Query(total(rate(engine("vllm:prompt_tokens_cached_by_source_total")), "source"), "{{source}}"),),
            unit="suffix: tok/s",
            page="kv",
        ),
        Panel(
            "Looked up and found",
            Says(
                "Is the prefix cache used at all?",
                "tokens looked up and found a second, over all engines.",
                "both move with the load; nothing looked up means that prefix caching is off.",
                "KV cache: Prefix hits",
            ),
            (
                Query(total(rate(_LOOKED_UP)), "looked up"),
                Query(total(rate(_HITS)), "found"),
                Query(total(rate(engine("vllm:prompt_tokens_cached_total"))), "not computed"),
            ),
            unit="suffix: tok/s",
            page="kv",
        ),
        Panel(
            "Block time by account",
            Says(
                "Whose requests hold the cache?",
                "blocks held, by account; shared blocks are split among their holders.",
                "as it was agreed.",
                "Requests: Step time by account",
            ),
            (Query(total(rate(server("vllm_obs_account_block_seconds_total")), "account"), "{{account}}"),),
            unit="suffix: blocks",
            page="kv",
            idle="no request ended",
            width=24,
            is_stacked=True,
        ),
    ),
)

_PRESSURE = Row(
    "Pressure",
    (
        Panel(
            "Preemptions",
            Says(
                "Do sequences lose their blocks?",
                "preemptions a second by what was short.",
                "none. Many: fewer sequences at a time, or more blocks.",
                "KV cache: Tokens lost to preemption",
            ),
            (
                Query(total(rate(engine("vllm_obs_preemptions_total")), "reason"), "{{reason}}"),
                Query(total(rate(engine("vllm:num_preemptions_total"))), "all"),
            ),
            levels=Levels(0.1, 1),
            page="kv",
        ),
        Panel(
            "Tokens lost to preemption",
            Says(
                "What do preemptions cost?",
                "tokens a second whose keys and values were thrown away, and that were computed again.",
                "nothing. Compare with all tokens: above a tenth it is a storm.",
                "KV cache: Preemptions of a sequence",
            ),
            (
                Query(total(rate(engine("vllm_obs_preempted_tokens_total"))), "thrown away"),
                Query(total(rate(engine("vllm_obs_recomputed_tokens_total"))), "computed again"),
            ),
            unit="suffix: tok/s",
            colours=LOST,
            page="kv",
        ),
        Panel(
            "Preemptions of a sequence",
            Says(
                "Is it always the same ones?",
                "ended sequences a second by how often they were preempted.",
                "all in the lowest bucket. Above it sequences are chased round.",
                "Requests: Time in stages",
            ),
            (Query(buckets(engine("vllm:request_num_preemptions")), "{{le}}"),),
            Kind.HEAT,
            page="requests",
        ),
        Panel(
            "Waiting for blocks",
            Says(
                "Do requests wait because blocks are short?",
                "time a second that ended sequences had waited for blocks: 1 is one of them all the time.",
                "nothing.",
                "KV cache: In use",
            ),
            (
                Query(
                    total(rate(engine("vllm_obs_request_wait_seconds_total", 'reason="kv_blocks"')), *_BY_ENGINE),
                    _ENGINE_NAME,
                ),
            ),
            unit="suffix: sequences",
            page="scheduler",
            width=12,
        ),
        Panel(
            "Full with others waiting",
            Says(
                "When was the cache what was short?",
                "sequences that wait while more than 95 % of the engine's blocks are held, else 0.",
                "0.",
                "Engine: What kept steps from taking in more",
            ),
            (
                Query(
                    f"{total(engine('vllm:num_requests_waiting'), *_BY_ENGINE)}"
                    f" * ({highest(_USAGE, *_BY_ENGINE)} > bool 0.95)",
                    _ENGINE_NAME,
                ),
            ),
            unit="suffix: sequences",
            levels=Levels(1, 10),
            page="kv",
            width=12,
        ),
    ),
)

KV_CACHE = Board(
    "vllm-obs-kv-cache",
    "KV cache",
    "Who holds the blocks of the KV cache, what is found again, and what it costs when they are short.",
    (VERDICT, _BLOCKS, _PREFIXES, _PRESSURE),
)
