"""The rules and alerts that are delivered: Prometheus takes them, they ask for what exists, all are tested."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from board_reading import family, grouped_by
from rule_reading import GRAFANA, num_uncounted, rules, uses

from vllm_obs.server.errors import STATUS_OF_REASON
from vllm_obs.telemetry.catalogue import BY_NAME
from vllm_obs.telemetry.catalogue_own import ERROR_TYPES
from vllm_obs.telemetry.catalogue_row import Metric

RECORDS = rules("rules")
ALERTS = rules("alerts")
RUNBOOK = (GRAFANA.parent / "docs" / "runbook.md").read_text()
UNIT_TESTS = sorted((GRAFANA / "tests").glob("*.yml"))
PARTS = ("**It means**", "**Look at**", "**Helps:**", "**Does not:**", "**It is over**")
"""What each section of the runbook says."""

SCRAPES = {name: Metric(name, "gauge", "") for name in ("up", "scrape_duration_seconds")}
KNOWN = BY_NAME | SCRAPES
GIVEN = {"job", "instance", "le"}
LEVELS = {
    "job": {"job"},
    "instance": {"job", "instance"},
    "model": {"job", "model_name"},
    "engine": {"job", "instance", "model_name", "engine"},
}
OPEN_VALUES = {"type": set(ERROR_TYPES), "job": {"vllm.*"}, "where": {"http"}, "le": {"2.5"}}
"""Of labels whose values are in no closed set of the catalogue."""

STATUSES = {type_: status for type_, status in STATUS_OF_REASON.items() if type_ != "shutting_down"}
"""Of all errors but a client's plain mistakes, which are 400; a shutdown was ordered."""

AT_A_LIMIT = sorted(type_ for type_, status in STATUSES.items() if status == 429)
BURNING = sorted([*AT_A_LIMIT, *(type_ for type_, status in STATUSES.items() if status >= 500), "poison_request"])
"""The last is 400 only so that clients do not try again."""

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> str:
    command = ["promtool", *arguments]
    done = subprocess.run(command, cwd=GRAFANA, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def name_of(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def sections() -> dict[str, str]:
    """The runbook's sections of the second level by their anchors."""
    found = re.split(r"^##? ", RUNBOOK, flags=re.MULTILINE)[1:]
    texts = {anchor(part.partition("\n")[0]): part for part in found}
    return {key: text for key, text in texts.items() if f"## {text.partition(chr(10))[0]}\n" in RUNBOOK}


def test_what_is_read_of_an_expression() -> None:
    expr = 'sum by (job) (rate(a:b_total{x=~"1|2", y="3"}[5m])) / on (job) max by (job, z) (c) > 0.5'
    assert uses(expr) == [("a:b_total", {"x": ["1", "2"], "y": ["3"]}), ("c", {})]
    assert (grouped_by(expr), num_uncounted(expr)) == ({"job", "z"}, 0)
    assert num_uncounted("rate(a[5m]) > sum by (job) (increase(b[5m]))") == 1


@needs_promtool
def test_prometheus_takes_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_prometheus_takes_every_rule() -> None:
    paths = [path for folder in ("rules", "alerts") for path in (GRAFANA / folder).iterdir()]
    told = promtool("check", "rules", "--lint-fatal", *map(str, paths))
    assert sum(map(int, re.findall(r"SUCCESS: (\d+) rules", told))) == len(RECORDS) + len(ALERTS)


@needs_promtool
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_say_what_they_should(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(path.relative_to(GRAFANA)))


def test_every_alert_is_tested_both_ways() -> None:
    ways: dict[str, set[bool]] = {}
    for path in UNIT_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for check in case["alert_rule_test"]:
                ways.setdefault(check["alertname"], set()).add(bool(check["exp_alerts"]))
    assert ways == {name_of(alert): {True, False} for alert in ALERTS}


@pytest.mark.parametrize("rule", [*RECORDS, *ALERTS], ids=name_of)
def test_it_asks_for_metrics_labels_and_values_that_exist(rule: dict[str, Any]) -> None:
    recorded = {each["record"] for each in RECORDS}
    labels = set(GIVEN)
    for metric_name, matched in uses(rule["expr"]):
        if metric_name in recorded:
            labels |= set().union(*LEVELS.values())
            continue
        metric = KNOWN[family(metric_name, set(KNOWN))]
        labels |= set(metric.labels)
        assert set(matched) <= {*metric.labels, *GIVEN}
        for label, values in matched.items():
            assert set(values) <= {*metric.values.get(label, OPEN_VALUES.get(label, ()))}, (label, values)
    assert uses(rule["expr"])
    assert grouped_by(rule["expr"]) <= labels


def types_asked_for(rules: list[dict[str, Any]], name: str) -> list[list[str]]:
    """The types of errors that each use of that metric in rules of that name matches."""
    found = [use for rule in rules if re.search(name, name_of(rule)) for use in uses(rule["expr"])]
    return [matched["type"] for metric, matched in found if metric == "vllm_obs_errors_total"]


def test_every_error_of_the_servers_burns_its_budget_and_no_other() -> None:
    asked = types_asked_for(RECORDS, ":vllm_obs_http_errors:") + types_asked_for(ALERTS, "ErrorBudgetBurn")
    assert asked == [BURNING] * 7


def test_every_kind_of_being_turned_away_at_a_limit_is_told() -> None:
    assert types_asked_for(ALERTS, "RequestsRejected") == [AT_A_LIMIT]


@pytest.mark.parametrize("rule", [*RECORDS, *ALERTS], ids=name_of)
def test_it_sums_counters_before_it_compares_and_falls_back_on_no_constant(rule: dict[str, Any]) -> None:
    assert "vector(" not in rule["expr"]
    assert num_uncounted(rule["expr"]) == 0


@pytest.mark.parametrize("rule", RECORDS, ids=name_of)
def test_the_first_word_of_a_record_says_what_it_is_of(rule: dict[str, Any]) -> None:
    level, *further = rule["record"].partition(":")[0].split("_")
    assert grouped_by(rule["expr"]) - {"le"} == {*LEVELS[level], *further}
    assert rule["record"].count(":") == 2


def test_no_two_rules_have_the_same_name() -> None:
    names = [name_of(rule) for rule in (*RECORDS, *ALERTS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_it_says_how_bad_it_is_with_a_number_and_what_to_do_first(alert: dict[str, Any]) -> None:
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert re.search(r"\$value|\$labels|no job", alert["annotations"]["summary"])
    page, _, place = alert["annotations"]["runbook_url"].partition("#")
    assert (page, place) == ("docs/runbook.md", anchor(alert["alert"]))


def test_the_runbook_has_a_whole_section_for_each_alert_and_no_other() -> None:
    found = sections()
    assert sorted(found) == sorted(anchor(alert["alert"]) for alert in ALERTS)
    lacking = {key: [part for part in PARTS if part not in text] for key, text in found.items()}
    assert {key: parts for key, parts in lacking.items() if parts} == {}


def test_links_of_the_runbook_lead_somewhere() -> None:
    inner = re.findall(r"\]\(#([^)]*)\)", RUNBOOK)
    assert set(inner) <= set(sections())
    pages = re.findall(r"\]\(([^#)]+)\)", RUNBOOK)
    assert [page for page in pages if not (GRAFANA.parent / "docs" / page).exists()] == []


def test_metrics_that_the_runbook_names_exist() -> None:
    recorded = {each["record"] for each in RECORDS}
    named = set(re.findall(r"(?<![\w:/])(?:\w+:)?vllm[_:]\w+(?::\w+)?", RUNBOOK)) - recorded
    series = {name for name in named if family(name, set(KNOWN)) not in KNOWN}
    assert {name for name in series if not any(record.startswith(name) for record in recorded)} == set()
