"""Inspector routes of the whole run: state, quantiles, invariants, configuration, events, and /metrics."""

from typing import Annotated, Any, Literal

from starlette.types import ASGIApp

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_events import EventStream
from vllm_obs.telemetry.inspect_parameters import Asked, Bounds
from vllm_obs.telemetry.inspect_queues import open_waits
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.inspect_state import run_view
from vllm_obs.telemetry.invariants import LAWS
from vllm_obs.telemetry.trend import SPAN_SECONDS

MAX_ACCEPT_CHARS = 1024
QuantileWindow = Literal["10s", "1m", "5m", "run"]


def live_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/state", summary="Health, queues, KV blocks, rates, the engine's loop, who waits and why")
    async def state() -> Reply:
        return Answer(run_view(context))

    @router.get("/inspect/quantiles", summary="Latencies: what is typical and what is slow")
    async def quantiles(window: QuantileWindow = "1m", engine: str | None = None) -> Reply:
        return Answer(quantile_view(context, window, engine))

    @router.get("/inspect/trend", summary="The last five minutes in spans: rates, latencies, queues, KV blocks")
    async def trend(every: Annotated[int, Bounds(description="seconds of a span: 1, 5 or 10")] = 5) -> Reply:
        if every not in SPAN_SECONDS:
            raise InspectError(f"every is {every}; a span is one of {SPAN_SECONDS} seconds", 422)
        return Answer(context.trend.columns(observer.now(), every))

    @router.get(
        "/inspect/invariants", summary="The conservation laws, how often each was broken, and the evidence"
    )
    async def invariants() -> Reply:
        return Answer(invariant_view(context))

    @router.get("/inspect/config", summary="What the Observer was started with, and the engines' facts")
    async def config() -> Reply:
        engines = sorted(observer.state.engines.items())
        described = {label: engine.described._asdict() for label, engine in engines if engine.described}
        return Answer({"observer": context.config.shown(), "engines": described})

    @router.get("/inspect/version", summary="Which version, and of which run")
    async def version() -> Reply:
        return Answer({"version": context.config.version, "run": observer.run, "is_live": observer.is_live})

    @router.get("/inspect/events", summary="Server-sent events: `state` and the `steps` that ended, once a second")
    async def events() -> ASGIApp:
        if context.hub.is_full:
            raise InspectError(f"{len(context.hub.clients)} clients listen already, which is the limit", 503)
        return EventStream(context.hub)

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics(asked: Asked) -> Reply:
        accept = asked.header("accept")
        if len(accept) > MAX_ACCEPT_CHARS:
            raise InspectError(f"accept has {len(accept)} characters; the limit is {MAX_ACCEPT_CHARS}", 422)
        body, content_type = context.render_metrics(accept)
        return Reply(body, content_type, headers={"cache-control": "no-store"})

    return router


def quantile_view(context: InspectContext, window: str, engine: str | None) -> dict[str, Any]:
    """All measures over a window, in seconds; merged over engines unless one is named.

    `queue_so_far` is `queue` with those who wait still, by how long they have waited until now.
    """
    state, now = context.observer.state, context.observer.now()
    summaries = context.quantiles.summary(window, now, engine)
    waits = open_waits(state, now, engine)
    summaries["queue_so_far"] = context.quantiles.summary_with("queue", waits, window, now, engine)
    return {
        "window": window,
        "engine": engine,
        "quantiles": {measure: summary._asdict() for measure, summary in summaries.items()},
    }


def invariant_view(context: InspectContext) -> dict[str, Any]:
    """Every law with what it says; `num_broken` is 0 in a run whose records agree."""
    invariants = context.observer.state.invariants
    laws = [
        {
            "law": breach.law,
            "says": LAWS[breach.law],
            "num_broken": breach.num_broken,
            "last_at": breach.last_at or None,
            "subject": breach.subject,
            "evidence": breach.evidence,
        }
        for breach in invariants.breaches()
    ]
    return {"num_broken": invariants.num_broken, "laws": laws}
