"""The inspector's view of utilisation: how much of what the machine can do is used, and what binds, in words."""

from typing import Any

from vllm_obs.telemetry.rate_windows import WINDOWS
from vllm_obs.telemetry.utilisation import NS, EngineWork, Rates, Utilisation, WorkSum

PHASES = ("prepare", "forward", "wait", "sample")
NEAR = 0.5
"""From this share of a limit on it is said to bind."""
CAVEAT = (
    "Operations are those of the model's matrix products, the same for every token (of a prompt only the last "
    "needs the head); bytes are the weights, once a step, and each row's keys and values, in the model's dtype. "
    "Attention's own operations and what passes between layers are left out."
)


def utilisation_view(utilisation: Utilisation, engine: str, window: str, now: int) -> dict[str, Any]:
    """All of `/inspect/utilisation`: rates and shares of the limits, null where a limit is not known.

    `worker` is per second of the workers' time, `forward` of their forward passes, `wall` of all the time there
    was. A window begins with a whole second, or with the first step of all.
    """
    work = utilisation.engine(engine) or EngineWork()
    begun_at = max(-(-(now - WINDOWS[window] * NS) // NS) * NS, work.first_at)
    described = utilisation.described(engine)
    num_ranks = described.world_size if described is not None else 1
    kinds = work.between(begun_at, now)
    whole = WorkSum(*map(sum, zip(*kinds.values(), strict=True)))
    limits = _limits(work, num_ranks)
    wall_ns = max(0, now - begun_at) if work.first_at else 0
    document = {
        "engine": engine,
        "window": {"name": window, "begun_at": begun_at, "seconds": wall_ns / NS},
        "num_steps": whole.num_steps,
        "num_ranks": num_ranks,
        "limits": _limit_view(work, num_ranks, limits),
        "work": {
            "num_tokens": whole.num_tokens,
            "flops": whole.num_flops,
            "bytes": whole.num_bytes,
            "intensity": _ratio(whole.num_flops, whole.num_bytes),
        },
        "worker": _rates(whole, whole.worker_ns, limits),
        "forward": _rates(whole, whole.forward_ns, limits),
        "wall": _rates(whole, wall_ns, limits),
        "kinds": {
            kind: _rates(each, each.worker_ns, limits)
            | {
                "num_steps": each.num_steps,
                "share": _ratio(each.worker_ns, whole.worker_ns),
                "intensity": _ratio(each.num_flops, each.num_bytes),
            }
            for kind, each in kinds.items()
        },
        "phases": {name: _ratio(getattr(whole, f"{name}_ns"), whole.worker_ns) for name in PHASES},
    }
    document["roofline"] = _roofline(document)
    return document | {"sentence": _sentence(document), "caveat": CAVEAT}


def _limits(work: EngineWork, num_ranks: int) -> Rates | None:
    """All ranks together: what was measured, or what a step did if that was more."""
    measured = work.measured(num_ranks)
    if measured is None:
        return None
    return Rates(*(max(each, seen) if each else 0.0 for each, seen in zip(measured, work.seen, strict=True)))


def _limit_view(work: EngineWork, num_ranks: int, limits: Rates | None) -> dict[str, Any] | None:
    measured = work.measured(num_ranks)
    if limits is None or measured is None:
        return None
    return {
        "dtype": work.limits[0].dtype,
        "flops_per_second": limits.flops or None,
        "bytes_per_second": limits.num_bytes or None,
        "balance": _ratio(limits.flops, limits.num_bytes) or None,
        "was_exceeded": {
            "flops": limits.flops > measured.flops,
            "bytes": limits.num_bytes > measured.num_bytes,
        },
        "ranks": [work.limits[rank]._asdict() for rank in range(num_ranks)],
    }


def _rates(work: WorkSum, num_ns: int, limits: Rates | None) -> dict[str, float | None]:
    seconds = num_ns / NS
    flops, num_bytes = _ratio(work.num_flops, seconds), _ratio(work.num_bytes, seconds)
    return {
        "seconds": seconds,
        "flops_per_second": flops,
        "bytes_per_second": num_bytes,
        "mfu": _ratio(flops, limits.flops if limits else 0),
        "mbu": _ratio(num_bytes, limits.num_bytes if limits else 0),
    }


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _roofline(document: dict[str, Any]) -> dict[str, Any] | None:
    """Which limit is nearer (Williams, Waterman, Patterson 2009), and how near; None where that is not known.

    With fewer operations a byte than the machine does while it reads one, reading takes longer than computing.
    """
    mfu, mbu = document["worker"]["mfu"], document["worker"]["mbu"]
    if mfu is None or mbu is None:
        return None
    return {
        "binds": "memory" if mbu >= mfu else "arithmetic",
        "share_of_roof": max(mfu, mbu),
        "is_near": max(mfu, mbu) >= NEAR,
        "intensity": document["work"]["intensity"],
        "balance": document["limits"]["balance"],
    }


def _sentence(document: dict[str, Any]) -> str:
    if not document["num_steps"]:
        return "No step has run in this time."
    if document["limits"] is None:
        return "What this machine can do was not measured, so it cannot be said how much of it is used."
    roof = document["roofline"]
    if roof is None:
        return "One of this machine's limits is not known, so it cannot be said which of them binds."
    does = (
        f"A step does {_figure(roof['intensity'])} operations for each byte it reads, "
        f"the machine {_figure(roof['balance'])}"
    )
    binds, reached = roof["binds"], _reached(document, roof["binds"])
    if not roof["is_near"]:
        return f"{does}, so {binds} would be the first to bind. But only {reached}: {_REST}"
    return f"{does}: steps wait for {binds}, so {_MEANS[binds]}. {reached}."


_MEANS = {
    "memory": "more rows in a step would cost little",
    "arithmetic": "a step with more tokens takes longer",
}
_REST = "most of the time goes into what is not counted here, the cost of each operation, or other programs."


def _reached(document: dict[str, Any], binds: str) -> str:
    name = "mbu" if binds == "memory" else "mfu"
    worker, wall = document["worker"][name], document["wall"][name]
    idle = f", and {_percent(wall)} over all the time" if wall is not None and wall < 0.9 * worker else ""
    return f"{_percent(worker)} of the limit is reached while workers work{idle}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def _figure(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
