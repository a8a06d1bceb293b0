"""PROCESSES: the processes of the servers and their memory, and whether what all boards show can be trusted."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    highest,
    increase,
    quantile,
    rate,
    server,
    total,
)
from vllm_obs.grafana.row_devices import DEVICES
from vllm_obs.grafana.row_telemetry import TELEMETRY
from vllm_obs.grafana.row_verdict import VERDICT

_PROCESS = ("instance", "role", "rank")
_PROCESS_NAME = "{{instance}} {{role}} {{rank}}"


def _of_processes(title: str, expr: str, says: Says, unit: str = "short", levels: Levels | None = None) -> Panel:
    return Panel(title, says, (Query(expr, _PROCESS_NAME),), unit=unit, levels=levels, page="processes")


_WRONG = Row(
    "What went wrong",
    (
        Panel(
            "Incidents by cause",
            Says(
                "What went wrong?",
                "incidents that were written down in the time that is shown, by their first cause, and how often "
                "an engine was started in the place of one that had died.",
                "all 0. The inspector's page has the folder of each.",
                "Processes and telemetry: Restarts",
            ),
            (
                Query(total(increase(server("vllm_obs_incidents_total"), "$__range"), "cause"), "{{cause}}", True),
                Query(
                    total(increase(server("vllm_obs_engine_restarts_total"), "$__range")), "engine restarts", True
                ),
            ),
            Kind.BARS,
            unit="none",
            levels=Levels(0.5, 0.5),
            page="incidents",
        ),
        Panel(
            "Stalls by culprit",
            Says(
                "Which process holds engines up?",
                "stalls that began in the time that is shown, by the kind of process that held the engine up.",
                "all 0.",
                "Engine: Stalls",
            ),
            (Query(total(increase(server("vllm_obs_stalls_total"), "$__range"), "role"), "{{role}}", True),),
            Kind.BARS,
            unit="none",
            levels=Levels(0.5, 0.5),
            page="incidents",
        ),
        Panel(
            "Restarts",
            Says(
                "Since when does each server run?",
                "the time since its root process began.",
                "no line that falls to 0 without a deploy.",
                "Processes and telemetry: Incidents by cause",
            ),
            (Query(f"time() - {highest(server('process_start_time_seconds'), 'instance')}", "{{instance}}"),),
            unit="s",
            page="processes",
        ),
        _of_processes(
            "Starts of each process",
            highest(server("vllm_obs_process_starts_total"), *_PROCESS),
            Says(
                "Was a part of a server started again?",
                "how often each process was started since its server was.",
                "1 everywhere. The incident at the time of a step tells why it died.",
                "Processes and telemetry: Incidents by cause",
            ),
            levels=Levels(2, 4),
        ),
    ),
)

_USE = Row(
    "Processes",
    (
        _of_processes(
            "CPU of each process",
            total(rate(server("vllm_obs_process_cpu_seconds_total")), *_PROCESS),
            Says(
                "Which process works?",
                "cores used by each process.",
                "the API server and the core each below one core: they have one loop.",
                "Processes and telemetry: Event loop lag",
            ),
            unit="suffix: cores",
        ),
        _of_processes(
            "Memory of each process",
            highest(server("vllm_obs_process_resident_memory_bytes"), *_PROCESS),
            Says(
                "Does memory grow?",
                "resident memory of each process.",
                "flat after the first minutes.",
                "Processes and telemetry: Memory by part",
            ),
            unit="bytes",
        ),
        Panel(
            "Memory by part",
            Says(
                "What is memory used for?",
                "resident memory of all processes by what it is; looked up every five minutes.",
                "weights and kv_cache by far the largest; little that is unaccounted.",
                "Processes and telemetry: Room for memory",
            ),
            (Query(total(server("vllm_obs_memory_bytes"), "part"), "{{part}}"),),
            unit="bytes",
            page="processes",
            is_stacked=True,
        ),
        Panel(
            "Event loop lag",
            Says(
                "Does an API server keep up?",
                "how late its event loop ran, at worst in each second: the chosen percentile by server.",
                "below 50 ms. Above it every stream stutters: add API servers.",
                "Processes and telemetry: CPU of each process",
            ),
            (Query(quantile(PERCENTILE, server("vllm_obs_event_loop_lag_seconds"), *_PROCESS), _PROCESS_NAME),),
            unit="s",
            levels=Levels(0.05, 0.25),
            page="processes",
        ),
        _of_processes(
            "Open files",
            highest(server("vllm_obs_process_open_fds"), *_PROCESS),
            Says(
                "Are files or sockets left open?",
                "files and sockets that each process has open.",
                "as many as there are connections; flat.",
                "Processes and telemetry: Room for files",
            ),
        ),
        _of_processes(
            "Threads",
            highest(server("vllm_obs_process_threads"), *_PROCESS),
            Says(
                "Are threads left behind?",
                "threads of each process.",
                "flat.",
                "Processes and telemetry: CPU of each process",
            ),
        ),
        Panel(
            "Room for files",
            Says(
                "How close is the root process to its limit of open files?",
                "its open files over the most it may have.",
                "below 70 %.",
                "Processes and telemetry: Open files",
            ),
            (
                Query(
                    f"{highest(server('process_open_fds'), 'instance')}"
                    f" / {highest(server('process_max_fds'), 'instance')}",
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            levels=Levels(0.7, 0.9),
            page="processes",
        ),
        Panel(
            "Room for memory",
            Says(
                "How close is a server to being killed for its memory?",
                "memory in use over what it may use: the limit of its group, else the machine's memory.",
                "below 85 %. At 100 % the kernel kills a process of it.",
                "Processes and telemetry: Memory by part",
            ),
            (
                Query(
                    f"{highest(server('vllm_obs_memory_used_bytes'), 'instance')}"
                    f" / {highest(server('vllm_obs_memory_limit_bytes'), 'instance')}",
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            levels=Levels(0.85, 0.95),
            page="processes",
        ),
        Panel(
            "Root process",
            Says(
                "What does the first API server take?",
                "its resident memory, by the client library's usual names, and its address space.",
                "resident memory is flat.",
                "Processes and telemetry: Memory of each process",
            ),
            (
                Query(highest(server("process_resident_memory_bytes"), "instance"), "{{instance}} resident"),
                Query(highest(server("process_virtual_memory_bytes"), "instance"), "{{instance}} address space"),
            ),
            unit="bytes",
            page="processes",
        ),
        Panel(
            "Garbage collection",
            Says(
                "Does Python's collector run often?",
                "runs a second of the root process's collector, by generation.",
                "generation 2 hardly ever: it stops the event loop.",
                "Processes and telemetry: Event loop lag",
            ),
            (
                Query(
                    total(rate(server("python_gc_collections_total")), "generation"), "generation {{generation}}"
                ),
            ),
            unit="suffix: runs/s",
            page="processes",
        ),
        Panel(
            "Start-up",
            Says(
                "What took long at the start?",
                "seconds of each part of the start-up, the longest of all servers.",
                "loading weights is the longest part.",
                "Processes and telemetry: Restarts",
            ),
            (
                Query(
                    f"topk(15, {highest(server('vllm_obs_startup_seconds'), 'role', 'phase')})",
                    "{{role}}: {{phase}}",
                    is_instant=True,
                ),
            ),
            Kind.BARS,
            unit="s",
            page="processes",
            width=16,
            height=10,
        ),
        Panel(
            "Versions",
            Says(
                "Which versions run?",
                "servers by the version of vllm-obs and of Python.",
                "one version, unless a deploy is under way.",
                "Processes and telemetry: Restarts",
            ),
            (
                Query(f"count by (version) ({server('vllm_obs_build_info')})", "vllm-obs {{version}}", True),
                Query(f"count by (version) ({server('python_info')})", "Python {{version}}", True),
            ),
            Kind.TILES,
            page="processes",
            height=10,
        ),
    ),
)


PROCESSES = Board(
    "vllm-obs-processes",
    "Processes and telemetry",
    "The processes of the servers and what they use, and whether what all boards show can be trusted.",
    (VERDICT, _WRONG, _USE, DEVICES, TELEMETRY),
)
