"""The first row of every board of ours: what holds the servers up, before any chart."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.colours import LIMITS
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import average, engine, highest, increase, lowest, rate, server, total

_ANY = Levels(1, 1)
_UP = Levels(1, 1, is_low_bad=True)

_ANSWERS = Panel(
    "Servers answer",
    Says(
        "Does every chosen server answer its scrapes?",
        "the smallest `up` of them.",
        "yes. No means that at least one is gone or answers too late.",
        "Processes and telemetry: Restarts",
    ),
    (Query(lowest(server("up")), "up"),),
    Kind.TILES,
    levels=_UP,
    words={0: "no", 1: "yes"},
    page="processes",
    width=3,
    height=5,
)
_PROGRESS = Panel(
    "Stalled engines",
    Says(
        "Has an engine work and makes no progress?",
        "how many engines and API servers are stalled now, whichever process holds them up.",
        "0. Above it requests hang: the watchdog's incident names the process.",
        "Processes and telemetry: Stalls by culprit",
    ),
    (Query(total(server("vllm_obs_stalled")), "stalled"),),
    Kind.TILES,
    levels=_ANY,
    page="incidents",
    width=3,
    height=5,
)
_INCIDENTS = Panel(
    "Incidents in this time",
    Says(
        "Did something go wrong in the time that is shown?",
        "growth of the incidents that were written down (deaths, stalls, failed steps).",
        "0. Each one has a folder that says what led to it.",
        "Processes and telemetry: Incidents by cause",
    ),
    (Query(total(increase(server("vllm_obs_incidents_total"), "$__range")), "incidents", is_instant=True),),
    Kind.TILES,
    unit="none",
    levels=Levels(0.5, 0.5),
    page="incidents",
    width=3,
    height=5,
)
_FINDINGS = Panel(
    "What holds it up now",
    Says(
        "What does the verdict over the last minute name?",
        "1 for each finding that holds on at least one server.",
        "nothing is lit. A finding says what would help; the inspector's overview has its evidence.",
        "Engine: What kept steps from taking in more",
    ),
    (Query(highest(server("vllm_obs_verdict"), "finding"), "{{finding}}", is_instant=True),),
    Kind.TILES,
    levels=_ANY,
    words={0: "no", 1: "holds"},
    width=15,
    height=5,
)
_LIMITS = Panel(
    "What kept steps from taking in more",
    Says(
        "Which limit was the engine at?",
        "step time a second by binding limit, as a mean over engines; what is missing to 100 % is idle time.",
        "underloaded. Time under kv_blocks, max_num_seqs, token_budget or prefill_share while requests wait is "
        "what to change.",
        "Engine: Waiting sequences",
    ),
    (Query(average(rate(engine("vllm_obs_binding_limit_seconds_total")), "limit"), "{{limit}}"),),
    unit="percentunit",
    colours=LIMITS,
    page="scheduler",
    width=12,
    is_stacked=True,
)
_HISTORY = Panel(
    "What held it up, over time",
    Says(
        "Since when, and how often?",
        "each finding of the verdict over time: lit while it held on at least one server.",
        "dark lines. Compare with latency below: what begins together belongs together.",
        "Overview: Time to first token",
    ),
    (Query(highest(server("vllm_obs_verdict"), "finding"), "{{finding}}"),),
    Kind.STATES,
    levels=_ANY,
    words={0: "no", 1: "holds"},
    width=12,
)

VERDICT = Row("Verdict", (_ANSWERS, _PROGRESS, _INCIDENTS, _FINDINGS))
"""The four tiles."""
VERDICT_HISTORY = Row("Verdict over time", (_HISTORY, _LIMITS))
LIMITS_PANEL = _LIMITS
