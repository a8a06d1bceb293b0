"""A real Prometheus with the rules of grafana/, and queries as Grafana would send them to it."""

import contextlib
import re
import tempfile
import time
import urllib.error
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from prometheus import Prometheus, started

GRAFANA = Path(__file__).parents[2] / "grafana"
JOB = "vllm"
INTERVAL = "1s"
RATE_INTERVAL = "15s"
"""What Grafana makes of $__rate_interval at most with a scrape a second: it must hold four scrapes at least."""

RANGE = "5m"

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


def rule_files() -> list[Path]:
    """The recording rules and the alerts that are delivered."""
    return sorted(path for folder in ("rules", "alerts") for path in (GRAFANA / folder).glob("*.yml"))


@contextlib.contextmanager
def prometheus_run(target_port: int) -> Iterator[Prometheus]:
    """A Prometheus with our rules that scrapes the server on that port, and evaluates them, every second."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as directory:
        place = Path(directory)
        config = place / "prometheus.yml"
        config.write_text(yaml.safe_dump(_config(target_port, [_copy(path, place) for path in rule_files()])))
        with started(config, "--enable-feature=exemplar-storage") as running:
            yield running


def _config(target_port: int, rules: list[Path]) -> dict[str, Any]:
    job = {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}
    return {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [job],
    }


def _copy(path: Path, place: Path) -> Path:
    """The same rules, every group of them evaluated at the interval of this run."""
    rules = yaml.safe_load(path.read_text())
    for group in rules["groups"]:
        group.pop("interval", None)
    copy = place / f"{path.parent.name}-{path.name}"
    copy.write_text(yaml.safe_dump(rules))
    return copy


def await_rules(prometheus: Prometheus, seconds: float = 30.0) -> None:
    """Return when every rule has been evaluated after this call began, and fail where one cannot be."""
    begun, deadline = time.time(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        broken = {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}
        assert not broken, broken
        if all(_moment(rule["lastEvaluation"]) >= begun for rule in rules):
            return
        time.sleep(0.2)
    raise AssertionError("not every rule was evaluated in time")


def _moment(text: str) -> float:
    """Seconds since 1970 of a time as Prometheus writes it, to the ns; less than 0 of one that never was."""
    whole, fraction, zone = _TIME.fullmatch(text).groups()  # type: ignore[union-attr]
    moment = datetime.fromisoformat(whole + zone.replace("Z", "+00:00"))
    return moment.timestamp() + float(fraction or 0)


def substituted(expression: str, values: Mapping[str, str]) -> str:
    """The query that Grafana would send: $name, ${name} and ${name:format} are replaced by their values.

    Raises KeyError for a variable without a value.
    """
    known = {"__rate_interval": RATE_INTERVAL, "__interval": INTERVAL, "__range": RANGE, **values}
    return _VARIABLE.sub(lambda found: known[found[1] or found[2]], expression)


def is_promql(prometheus: Prometheus, query: str) -> bool:
    """Whether Prometheus can read it."""
    try:
        prometheus.get("format_query", query=query)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.BAD_REQUEST:
            raise
        return False
    return True


def has_data(prometheus: Prometheus, query: str, over_seconds: float = 0.0) -> bool:
    """Whether it gives at least one number (NaN is none): now, or at any time of the last `over_seconds`."""
    if not over_seconds:
        return any(value == value for _, value in prometheus.query(query))
    now = time.time()
    times = {"start": f"{now - over_seconds:.3f}", "end": f"{now:.3f}", "step": INTERVAL}
    found = prometheus.get("query_range", query=query, **times)["result"]
    return any(value != "NaN" for series in found for _, value in series["values"])


def without_data(
    prometheus: Prometheus, queries: Iterable[str], over_seconds: float = 0.0, seconds: float = 0.0
) -> list[str]:
    """The queries that have no data as `has_data` says, not even when asked again for `seconds`."""
    deadline = time.monotonic() + seconds
    left = list(queries)
    while True:
        left = [query for query in left if not has_data(prometheus, query, over_seconds)]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.5)
