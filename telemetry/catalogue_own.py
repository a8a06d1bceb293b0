"""OWN_METRICS: what only vllm-obs tells, `vllm_obs_…`."""

from vllm_obs.telemetry.binding_limit import BINDING_LIMITS
from vllm_obs.telemetry.catalogue_device import DEVICE_METRICS
from vllm_obs.telemetry.catalogue_row import ENGINE_LABELS, Kind, Metric
from vllm_obs.telemetry.death_cause import CAUSES
from vllm_obs.telemetry.eager_reasons import EXECUTIONS
from vllm_obs.telemetry.economics_catalogue import ECONOMICS_METRICS
from vllm_obs.telemetry.invariants import LAWS
from vllm_obs.telemetry.memory_ledger_holding import PARTS, UNACCOUNTED
from vllm_obs.telemetry.otlp_export import DROP_REASONS
from vllm_obs.telemetry.stages import STAGES
from vllm_obs.telemetry.verdict_names import FINDINGS
from vllm_obs.telemetry.wait_reasons import WAIT_REASONS

STEP_PHASES = ("schedule", "prepare", "forward", "sample", "update", "other")
PREEMPTION_REASONS = ("kv_blocks", "priority")
BLOCK_STATES = ("active", "cached", "free")
QUEUES = ("inbox", "waiting", "steps_in_flight", "open_http", "open_sequences", "undelivered_deltas")
ERROR_TYPES = (
    "invalid_http", "invalid_json", "invalid_body", "invalid_value", "unsupported", "unsupported_media_type",
    "empty_prompt", "model_not_found", "not_found", "method_not_allowed", "conflict", "too_deep", "too_large",
    "too_many_sequences", "context_length_exceeded", "unauthorized", "forbidden", "timeout", "head_timeout",
    "body_timeout", "overloaded", "too_many_queued_tokens", "under_pressure", "shutting_down", "engine_dead",
    "not_ready", "restarting", "stalled", "invalid_logits", "poison_request", "internal_error",
)  # fmt: skip
"""The words an error reply carries. A test holds them to the engine's."""

FRAME_REASONS = (
    "parts", "decode", "version", "type", "size", "generation", "client", "stranger", "duplicate", "unknown",
    "unread",
)  # fmt: skip
"""Why a message between processes was dropped. A test holds them to the engine's."""
HARMLESS_FRAMES = ("unknown",)
"""An abort that crossed with its sequence's end: everyday business, and no error."""

PRESSURE_SOURCES = ("queue", "kv_cache", "memory", "event_loop")
"""What a server's pressure is from. A test holds them to the server's."""
SIGNALS = ("spans", "metrics")
MEMORY_PARTS = (*PARTS, UNACCOUNTED)
STALL_ROLES = ("engine_core", "worker", "api_server", "launcher")
"""The kinds of process that can hold an engine, or everybody, up."""

# fmt: off
STAGE_BUCKETS = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
)
PHASE_BUCKETS = (
    0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)
FLOOR_BUCKETS = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, 100.0)
# fmt: on


def _engine(name: str, kind: Kind, text: str, **values: tuple[str, ...]) -> Metric:
    return Metric(f"vllm_obs_{name}", kind, text, (*ENGINE_LABELS, *values), values=values)


def _timed(name: str, buckets: tuple[float, ...], text: str, **values: tuple[str, ...]) -> Metric:
    return Metric(f"vllm_obs_{name}", "histogram", text, (*ENGINE_LABELS, *values), buckets, values)


def _process(name: str, kind: Kind, text: str, labels: tuple[str, ...] = ("role", "rank")) -> Metric:
    return Metric(f"vllm_obs_{name}", kind, text, labels, needs_stats=False)


_REQUESTS = (
    _timed(
        "request_stage_seconds",
        STAGE_BUCKETS,
        "Time each ended sequence was in a stage; only stages it was in. They sum to its latency.",
        stage=STAGES,
    ),
    _engine(
        "request_wait_seconds_total", "counter", "Time ended sequences waited, by the reason.", reason=WAIT_REASONS
    ),
    _engine(
        "discarded_tokens_total",
        "counter",
        "Tokens the engine made that the API server had no more use for: after an abort or a stop string.",
    ),
    Metric(
        "vllm_obs_errors_total",
        "counter",
        "Errors by where they showed (http: replies with an error, refusals too) and what kind they were.",
        ("where", "type"),
        needs_stats=False,
    ),
    Metric(
        "vllm_obs_bad_frames_total",
        "counter",
        "Messages between the server's processes that were dropped, by why; unknown: an abort of what had ended.",
        ("reason",),
        values={"reason": FRAME_REASONS},
        needs_stats=False,
    ),
)

_STEPS = (
    _timed(
        "step_seconds",
        PHASE_BUCKETS,
        "Time of each step by phase; other is the wire, waiting and what is between the phases.",
        phase=STEP_PHASES,
    ),
    _engine("steps_total", "counter", "Steps by how they ended.", outcome=("answered", "failed")),
    _engine(
        "engine_loop_seconds_total",
        "counter",
        "Time the engine had a step to do, or none.",
        state=("busy", "idle"),
    ),
    _engine(
        "forward_passes_total",
        "counter",
        "Forward passes, one a step and rank: as a CUDA graph, or eagerly, by why.",
        execution=EXECUTIONS,
    ),
    _engine("padded_tokens_total", "counter", "Tokens that CUDA graphs computed for nothing: rows a step lacked."),
    _engine("step_device_seconds_total", "counter", "Time that GPUs were busy with steps."),
    _engine("wasted_rows_total", "counter", "Rows computed for sequences that had left before the step answered."),
    _engine("preemptions_total", "counter", "Preemptions by what was short.", reason=PREEMPTION_REASONS),
    _engine("preempted_tokens_total", "counter", "Tokens whose keys and values preemption threw away."),
    _engine("recomputed_tokens_total", "counter", "Tokens computed again after a preemption."),
    _engine(
        "estimated_flops_total", "counter", "Floating-point operations of the steps, attention's own left out."
    ),
    _engine(
        "estimated_read_bytes_total", "counter", "Bytes of weights and cached keys and values that steps read."
    ),
    _engine("estimated_write_bytes_total", "counter", "Bytes of keys and values that steps wrote."),
)

_VERDICT = (
    _engine(
        "binding_limit_seconds_total",
        "counter",
        "Step time by what kept the step from taking in more; underloaded: nobody waited.",
        limit=BINDING_LIMITS,
    ),
    _timed(
        "step_floor_ratio",
        FLOOR_BUCKETS,
        "Time of each step's workers over the least time that as much work took on this machine, where known.",
    ),
    Metric(
        "vllm_obs_verdict",
        "gauge",
        "1 for each finding that the verdict over the last minute names; a stall that is over is 0.",
        ("finding",),
        values={"finding": FINDINGS},
    ),
)

_LEVELS = (
    _engine("kv_blocks", "gauge", "KV blocks: held, cached and free to evict, or empty.", state=BLOCK_STATES),
    _engine("kv_tokens", "gauge", "Token slots of the KV cache that hold a sequence's keys and values."),
    _engine(
        "kv_token_occupancy_ratio",
        "gauge",
        "The same as a share of all slots; what vllm:kv_cache_usage_perc is above it is lost to unfilled blocks.",
    ),
    _engine("oldest_wait_seconds", "gauge", "How long whoever waits longest has waited until now, 0 for nobody."),
    Metric(
        "vllm_obs_queue_depth",
        "gauge",
        "What waits in each queue on a request's way, over all processes.",
        ("queue",),
        values={"queue": QUEUES},
    ),
    Metric("vllm_obs_connections", "gauge", "HTTP connections that are open, idle ones too, of all API servers."),
    Metric(
        "vllm_obs_connections_limit",
        "gauge",
        "How many there may be: the limit, or as many as the open files of each API server leave.",
    ),
    Metric(
        "vllm_obs_pressure",
        "gauge",
        "How near an API server is to what it cannot bear, 0 to 1, under the worst source, 0 under the others: "
        "from 0.8 on it refuses requests step by step.",
        ("source",),
        values={"source": PRESSURE_SOURCES},
    ),
    _timed(
        "ipc_delay_seconds",
        PHASE_BUCKETS,
        "From sending to taking: a request on its way to the core, or a step's tokens on their way back.",
        direction=("request", "output"),
    ),
)

_STALLS = (
    Metric(
        "vllm_obs_stalled",
        "gauge",
        "1 while an engine (or, without one, an API server or launcher) makes no progress; role holds it up.",
        ("engine", "role"),
        values={"role": STALL_ROLES},
        needs_stats=False,
    ),
    Metric(
        "vllm_obs_stalls_total",
        "counter",
        "Stalls that began, by the kind of process that held the engine up.",
        ("engine", "role"),
        values={"role": STALL_ROLES},
        needs_stats=False,
    ),
)

_RESTARTS = (
    Metric(
        "vllm_obs_engine_restarts_total",
        "counter",
        "Engines that became ready in the place of one that had died.",
        ("engine",),
        needs_stats=False,
    ),
)

_INCIDENTS = (
    Metric(
        "vllm_obs_incidents_total",
        "counter",
        "Incidents that were written down: deaths of processes, stalls and failed steps, by their first cause.",
        ("cause",),
        values={"cause": CAUSES},
        needs_stats=False,
    ),
)

_PROCESSES = (
    _process("process_cpu_seconds_total", "counter", "CPU time of each process, user and system."),
    _process("process_resident_memory_bytes", "gauge", "Memory of each process that is in RAM."),
    Metric(
        "vllm_obs_memory_bytes",
        "gauge",
        "Memory of each process that is in RAM, by what it is; looked up every five minutes, and when much of it "
        "has come or gone; 0 before.",
        ("role", "rank", "part"),
        values={"part": MEMORY_PARTS},
        needs_stats=False,
    ),
    _process(
        "memory_limit_bytes", "gauge", "Memory the server may use: its group's limit, else the machine's.", ()
    ),
    _process("memory_used_bytes", "gauge", "What of that is in use, less what can be given back at once.", ()),
    _process("process_open_fds", "gauge", "Files and sockets each process has open."),
    _process("process_threads", "gauge", "Threads of each process."),
    _process(
        "process_starts_total", "counter", "How often each process was started; after 1 it was started again."
    ),
    _process("startup_seconds", "gauge", "Length of each part of a start-up.", ("role", "rank", "phase")),
    Metric(
        "vllm_obs_event_loop_lag_seconds",
        "histogram",
        "How late an API server's event loop ran, at worst in each second.",
        ("role", "rank"),
        PHASE_BUCKETS,
        needs_stats=False,
    ),
    Metric(
        "vllm_obs_build_info", "gauge", "The version that runs; the value is 1.", ("version",), needs_stats=False
    ),
)

_TELEMETRY = (
    _process("recorder_records_total", "counter", "Records read from each process."),
    _process("recorder_lost_records_total", "counter", "Records overwritten unread, torn or never written."),
    Metric(
        "vllm_obs_exporter_failures_total",
        "counter",
        "Exports that an OTLP endpoint did not take, and exporters that could not be set up.",
        ("signal",),
        values={"signal": SIGNALS},
        needs_stats=False,
    ),
    Metric(
        "vllm_obs_dropped_spans_total",
        "counter",
        "Spans that were made and not exported, by why.",
        ("reason",),
        values={"reason": DROP_REASONS},
        needs_stats=False,
    ),
    _process("over_budget_spans_total", "counter", "Spans not made because there were too many a second.", ()),
    _process("left_out_span_links_total", "counter", "Links from requests to steps not kept: too many.", ()),
    Metric(
        "vllm_obs_invariant_violations_total",
        "counter",
        "How often each conservation law was found broken.",
        ("invariant",),
        values={"invariant": tuple(LAWS)},
        needs_stats=False,
    ),
    _process("checkpoint_failures_total", "counter", "Times the Observer could not save where it stands.", ()),
    _process("telemetry_cpu_seconds_total", "counter", "CPU time of the Observer.", ()),
    _process("telemetry_detail_level", "gauge", "Trace detail in force, 0 to 3.", ()),
    _process("trace_sample_ratio", "gauge", "Share of new traces that are sampled.", ()),
)

OWN_METRICS: tuple[Metric, ...] = (
    *_REQUESTS,
    *_STEPS,
    *_LEVELS,
    *_VERDICT,
    *_STALLS,
    *_RESTARTS,
    *_INCIDENTS,
    *ECONOMICS_METRICS,
    *_PROCESSES,
    *DEVICE_METRICS,
    *_TELEMETRY,
)
