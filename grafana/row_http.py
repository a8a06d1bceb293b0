"""HTTP: what clients of the servers ask for and get."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.colours import STATUSES
from vllm_obs.grafana.panel import Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    highest,
    mean,
    quantile,
    rate,
    server,
    spent,
    total,
)

HTTP = Row(
    "HTTP",
    (
        Panel(
            "HTTP requests by status",
            Says(
                "What do clients get?",
                "HTTP requests a second by status; 4xx has those who left (499) too.",
                "2xx. 5xx is the server's fault, 4xx the client's.",
                "Overview: Errors",
            ),
            (Query(total(rate(server("http_requests_total")), "status"), "{{status}}"),),
            unit="reqps",
            colours=STATUSES,
            page="requests",
            idle="no HTTP request",
            is_stacked=True,
        ),
        Panel(
            "HTTP requests by route",
            Says(
                "Which routes are used?",
                "HTTP requests a second by route and method.",
                "the routes that are meant to be used; none is a path that no route takes.",
                "Requests: HTTP time",
            ),
            (Query(total(rate(server("http_requests_total")), "handler", "method"), "{{method}} {{handler}}"),),
            unit="reqps",
            page="requests",
            idle="no HTTP request",
        ),
        Panel(
            "HTTP time",
            Says(
                "How long do HTTP requests take, all routes together?",
                "the chosen percentile and the median, from the first byte in to the last byte out.",
                "close to end to end; those without a model are fast.",
                "Requests: HTTP time by route",
            ),
            (
                Query(
                    quantile(PERCENTILE, server("http_request_duration_highr_seconds")),
                    "${percentile:text}",
                    has_exemplars=True,
                ),
                Query(quantile("0.5", server("http_request_duration_highr_seconds")), "median"),
            ),
            unit="s",
            page="requests",
            idle="no HTTP request",
        ),
        Panel(
            "HTTP time by route",
            Says(
                "Which route is slow?",
                "mean time by route.",
                "only routes that generate take long.",
                "Requests: Time in stages",
            ),
            (Query(mean(server("http_request_duration_seconds"), "handler"), "{{handler}}"),),
            unit="s",
            page="requests",
            idle="no HTTP request",
        ),
        Panel(
            "HTTP bytes",
            Says(
                "How much is sent?",
                "bytes of bodies a second, in and out.",
                "some hundred bytes for each token that is streamed.",
                "Requests: HTTP requests by route",
            ),
            (
                Query(spent(server("http_request_size_bytes")), "in"),
                Query(spent(server("http_response_size_bytes")), "out"),
            ),
            unit="Bps",
            page="requests",
            idle="no HTTP request",
        ),
        Panel(
            "Queues on the way",
            Says(
                "Where do requests pile up?",
                "what waits in each queue between the socket and the engine, over all processes.",
                "inbox and undelivered_deltas near 0; open_http is clients that are being served.",
                "Processes and telemetry: Event loop lag",
            ),
            (Query(total(server("vllm_obs_queue_depth"), "queue"), "{{queue}}"),),
            page="processes",
        ),
        Panel(
            "Connections",
            Says(
                "How near is a server to having no room for another connection?",
                "open HTTP connections, idle ones too, and how many there may be.",
                "far apart. At the limit whoever keeps the server waiting longest gives way.",
                "Requests: Queues on the way",
            ),
            (
                Query(total(server("vllm_obs_connections")), "open"),
                Query(total(server("vllm_obs_connections_limit")), "limit"),
            ),
            page="processes",
        ),
        Panel(
            "Pressure",
            Says(
                "How near is a server to refusing requests?",
                "the pressure of the API server that has most, under its worst source; 0 under the others.",
                "below 0.8. From there on requests with several sequences are refused, from 0.9 those of low "
                "priority too, at 1 all.",
                "Requests: Queues on the way",
            ),
            (Query(highest(server("vllm_obs_pressure"), "source"), "{{source}}"),),
            page="processes",
        ),
    ),
)
