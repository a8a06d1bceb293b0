"""The inspector's view of economics: who spent what in a window, what nobody did, and whether it all adds up."""

from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import Any

from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_costs import AccountTotals, RequestCost
from vllm_obs.telemetry.economics_engine import EngineTotals
from vllm_obs.telemetry.economics_windows import WINDOWS, Spending, spent_between
from vllm_obs.telemetry.explain_words import duration

NS = 1e9
NUM_TOP = 10

_TOKENS = ("num_prompt_tokens", "num_cached_tokens", "num_generation_tokens", "num_recomputed_tokens")


def economics_view(economics: Economics, now: int, window: str) -> dict[str, Any]:
    """All of `/inspect/economics`. What is said of requests is over their whole lives."""
    whole = economics.spending()
    begun = economics.windows.since(WINDOWS[window], now)
    spent = spent_between(begun.spending, whole)
    costs = [cost for cost in economics.book.all() if not cost.released_at or cost.released_at >= begun.at]
    return {
        "window": {"name": window, "begun_at": begun.at, "seconds": max(0, now - begun.at) / NS},
        "totals": _totals(spent),
        "accounts": [_account(name, totals, spent) for name, totals in _by_spending(spent)],
        "no_request": _no_request(spent.engines.values()),
        "top": {
            "by_step_seconds": _top(economics, costs, lambda cost: cost.step_ns),
            "by_block_seconds": _top(economics, costs, economics.block_ns),
        },
        "check": _check(whole),
        "is_exact": economics.is_exact,
        "caveat": _caveat(economics),
        "cost_models": {label: engine.cost._asdict() for label, engine in sorted(economics.engines.items())},
    }


def cost_fields(economics: Economics | None, request_id: str) -> dict[str, float | None]:
    """What a sequence has cost so far, in seconds; None where that is not known."""
    cost = economics.book.find(request_id) if economics is not None else None
    if economics is None or cost is None:
        return {"step_seconds": None, "block_seconds": None}
    return {"step_seconds": cost.step_ns / NS, "block_seconds": economics.block_ns(cost) / NS}


def cost_sentences(economics: Economics | None, request_id: str) -> list[str]:
    """The same in words; none where there is nothing to say."""
    cost = economics.book.find(request_id) if economics is not None else None
    if economics is None or cost is None or not cost.step_ns:
        return []
    share, block_seconds = 100 * economics.step_share(cost), economics.block_ns(cost) / NS
    blocks = f"{block_seconds:.0f}" if block_seconds >= 100 else f"{block_seconds:.3g}"
    took = f"It took {duration(cost.step_ns)} of the engine's step time ({share:.0f} %)"
    return [f"{took} and held {blocks} block-seconds."]


def _totals(spent: Spending) -> dict[str, Any]:
    accounts = spent.accounts.values()
    return {
        "step_seconds": sum(totals.step_ns for totals in accounts) / NS,
        "block_seconds": sum(totals.block_ns for totals in accounts) / NS,
        **{name: sum(getattr(totals, name) for totals in accounts) for name in _TOKENS},
        "num_requests": sum(totals.num_requests for totals in accounts),
        "num_steps": sum(engine.num_steps for engine in spent.engines.values()),
        "num_failed_steps": sum(engine.num_failed_steps for engine in spent.engines.values()),
        "num_wasted_rows": sum(engine.num_wasted_rows for engine in spent.engines.values()),
    }


def _by_spending(spent: Spending) -> list[tuple[str, AccountTotals]]:
    return sorted(spent.accounts.items(), key=lambda item: (-item[1].step_ns, item[0]))


def _account(name: str, totals: AccountTotals, spent: Spending) -> dict[str, Any]:
    step_ns = sum(each.step_ns for each in spent.accounts.values())
    block_ns = sum(each.block_ns for each in spent.accounts.values())
    return {
        "account": name,
        "step_seconds": totals.step_ns / NS,
        "step_share": totals.step_ns / step_ns if step_ns else 0.0,
        "block_seconds": totals.block_ns / NS,
        "block_share": totals.block_ns / block_ns if block_ns else 0.0,
        **{field: getattr(totals, field) for field in _TOKENS},
        "num_requests": totals.num_requests,
        "requests": {reason: num for reason, num in totals.requests.items() if num},
    }


def _no_request(engines: Iterable[EngineTotals]) -> dict[str, float]:
    """Time and blocks that no request caused, or of which it is not known who did."""
    engines = list(engines)
    unheld_ns = sum(engine.core_block_ns - engine.held_block_ns for engine in engines)
    return {
        "idle_seconds": sum(engine.idle_ns for engine in engines) / NS,
        "rowless_step_seconds": sum(engine.rowless_ns for engine in engines) / NS,
        "unknown_seconds": sum(engine.unknown_ns for engine in engines) / NS,
        "unknown_block_seconds": max(0, unheld_ns) / NS,
    }


def _top(
    economics: Economics, costs: Iterable[RequestCost], size: Callable[[RequestCost], float]
) -> list[dict[str, Any]]:
    return [
        {
            "request_id": cost.request_id,
            "external_id": cost.external_id,
            "account": economics.book.name(cost),
            "engine": cost.engine,
            "is_live": not cost.released_at,
            "step_seconds": cost.step_ns / NS,
            "step_share": economics.step_share(cost),
            "block_seconds": economics.block_ns(cost) / NS,
        }
        for cost in nlargest(NUM_TOP, costs, key=size)
        if size(cost) > 0
    ]


def _check(whole: Spending) -> dict[str, Any]:
    """The sum over all sequences against the whole that the engines measured, since the run began."""
    engines, accounts = whole.engines.values(), whole.accounts.values()
    return {
        "step_time": _ratio(sum(totals.step_ns for totals in accounts), sum(engine.step_ns for engine in engines)),
        "blocks": _ratio(
            sum(totals.block_ns for totals in accounts), sum(engine.core_block_ns for engine in engines)
        ),
    }


def _ratio(charged_ns: float, whole_ns: float) -> dict[str, float | None]:
    return {
        "charged_seconds": charged_ns / NS,
        "whole_seconds": whole_ns / NS,
        "ratio": charged_ns / whole_ns if whole_ns else None,
    }


def _caveat(economics: Economics) -> str:
    num_steps = sum(engine.totals.num_lost_steps for engine in economics.engines.values())
    if economics.is_exact:
        return ""
    return (
        f"{economics.num_lost} records of engines were lost: {num_steps} steps are charged to nobody, and blocks "
        "only as far as it is known who holds them."
    )
