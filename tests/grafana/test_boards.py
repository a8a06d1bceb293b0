"""The boards as they stand in the repository: current, complete, and asking for metrics and labels that exist."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from board_reading import asked, family, grouped_by, panels, selectors

from vllm_obs.dashboard.palette import STAGE_COLOURS
from vllm_obs.grafana.boards import BOARDS, documents
from vllm_obs.grafana.export import HOME
from vllm_obs.grafana.links import PAGES
from vllm_obs.telemetry.catalogue import BY_NAME, CATALOGUE
from vllm_obs.telemetry.stages import STAGES

TABLE = Path(__file__).parents[1] / "data" / "vllm_metrics.tsv"
VLLMS = {
    row["name"]: set(filter(None, row["labels"].split(",")))
    for row in csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t")
}
SCRAPES = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
"""What Prometheus itself makes of a scrape."""
GIVEN = {"job", "instance", "le"}
VARIABLES = {"datasource", "job", "model_name", "instance", "engine", "percentile", "inspector"}
SHOWN_ELSEWHERE = {
    # The same under our own names, which need no flag.
    *(f"vllm:estimated_{what}_per_gpu_total" for what in ("flops", "read_bytes", "write_bytes")),
    "vllm:prompt_tokens_recomputed_total",
    "vllm:gpu_cache_usage_perc",
    # Features that this server does not have.
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:mm_cache_queries_total",
    "vllm:mm_cache_hits_total",
    "vllm:num_requests_swapped",
    # Runs of the collector are shown; what it found is a programmer's question.
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
}
DOCUMENTS = {name: json.loads((HOME / "dashboards" / name).read_text()) for name in documents()}
FLEET = "vllm-obs-fleet.json"


@pytest.fixture(params=DOCUMENTS, ids=lambda name: name.removesuffix(".json"))
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(DOCUMENTS[request.param])


def test_the_boards_that_were_promised_are_there() -> None:
    titles = ["Overview", "Engine", "KV cache", "Requests", "Processes and telemetry", "Fleet"]
    assert [board.title for board in BOARDS] == titles
    assert len({board.uid for board in BOARDS}) == len(titles)


def test_the_verdict_comes_first(board: dict[str, Any]) -> None:
    assert board["panels"][0]["title"] == "Verdict"
    assert board["panels"][0]["type"] == "row"


def test_every_panel_explains_itself(board: dict[str, Any]) -> None:
    for panel in panels(board):
        question, formula, good, following = panel["description"].split("\n\n")
        assert re.fullmatch(r"\*\*.+\?\*\*", question), panel["title"]
        assert (formula[:11], good[:8], following[:8]) == ("*Formula:* ", "*Good:* ", "*Next:* ")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"]


def test_every_panel_leads_to_another_that_exists() -> None:
    known = {f"{board.title}: {panel.title}" for board in BOARDS for panel in board.panels}
    for board in BOARDS:
        for panel in board.panels:
            assert panel.says.next in known - {f"{board.title}: {panel.title}"}, (board.title, panel.title)


def test_titles_and_numbers_are_unique(board: dict[str, Any]) -> None:
    numbers = Counter(panel["id"] for panel in board["panels"])
    titles = Counter(panel["title"] for panel in panels(board))
    assert (max(numbers.values()), max(titles.values())) == (1, 1)


def test_no_panel_covers_another_and_all_are_on_the_board(board: dict[str, Any]) -> None:
    covered: Counter[tuple[int, int]] = Counter()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        covered.update((place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"]))
    assert max(covered.values()) == 1


def test_every_data_source_is_the_one_that_is_chosen(board: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(board):
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
    others = [each for each in board["annotations"]["list"] if not each.get("builtIn")]
    assert all(each["datasource"] == chosen for each in others)


def test_all_variables_are_there_and_no_other_is_used(board: dict[str, Any]) -> None:
    names = {each["name"] for each in board["templating"]["list"]}
    assert names >= VARIABLES
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"] + board["annotations"]["list"])))
    built_in = {name for name in used if name.startswith("__")}
    assert built_in <= {
        "__rate_interval",
        "__range",
        "__from",
        "__to",
        "__field",
        "__url_time_range",
        "__all_variables",
    }
    assert used - built_in == names


def test_every_query_asks_for_what_is_chosen(board: dict[str, Any]) -> None:
    for query in asked(board):
        for selector in selectors(query.expr):
            assert selector.labels >= {"job", "instance"}, query.place


def test_every_metric_and_label_exists(board: dict[str, Any]) -> None:
    annotated = [each["expr"] for each in board["annotations"]["list"] if "expr" in each]
    for expr in [*(query.expr for query in asked(board)), *annotated]:
        found = selectors(expr)
        assert found, expr
        # Nothing is asked for without braces, where it would be of all jobs.
        assert not re.search(r"\b(?:vllm_obs_|vllm:|http_|process_|python_)\w+(?![\w{])", expr), expr
        known = [labels_of(selector.metric) for selector in found]
        for selector, labels in zip(found, known, strict=True):
            assert selector.labels <= labels, (expr, selector)
        assert grouped_by(expr) <= set().union(*known), expr


def labels_of(metric: str) -> set[str]:
    """The labels of a series, those that a scrape adds among them."""
    if metric in SCRAPES:
        return GIVEN - {"le"}
    name = family(metric, set(BY_NAME))
    assert name in BY_NAME, metric
    return {*BY_NAME[name].labels, *(GIVEN if metric.endswith("_bucket") else GIVEN - {"le"})}


def test_the_fleets_board_asks_for_what_vllm_has_only() -> None:
    document = DOCUMENTS[FLEET]
    annotated = [each["expr"] for each in document["annotations"]["list"] if "expr" in each]
    for expr in [*(query.expr for query in asked(document)), *annotated]:
        for selector in selectors(expr):
            if selector.metric not in SCRAPES:
                name = family(selector.metric, set(VLLMS))
                assert selector.labels <= VLLMS[name] | {"job", "instance"}, expr


def test_every_metric_is_on_a_board() -> None:
    known = set(BY_NAME)
    shown = {
        family(selector.metric, known)
        for document in DOCUMENTS.values()
        for query in asked(document)
        for selector in selectors(query.expr)
    }
    assert {metric.name for metric in CATALOGUE} - shown == SHOWN_ELSEWHERE & known


def test_quantiles_are_of_merged_buckets_and_nothing_stands_in_for_data(board: dict[str, Any]) -> None:
    for query in asked(board):
        assert "vector(" not in query.expr, query.place
        assert " or " not in query.expr, query.place
        for before, inner in re.findall(r"(\w*)\(?histogram_quantile\([^,]+, (.{18})", query.expr):
            assert inner.startswith("sum by (le"), query.place
            assert before == "", query.place
        assert "_bucket" in query.expr or "quantile" not in query.expr, query.place


def test_counters_are_rated_over_what_grafana_says(board: dict[str, Any]) -> None:
    for query in asked(board):
        windows = set(re.findall(r"\[([^\]]+)\]", query.expr))
        assert windows <= {"$__rate_interval", "$__range"}, query.place
        if "$__range" in windows:
            assert query.is_instant, query.place


def test_every_series_has_a_name_and_legends_stand_still(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert all(target["legendFormat"] not in ("", "__auto") for target in panel["targets"]), panel["title"]
        names = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(names)) == len(names), panel["title"]
        for name, target in zip(names, panel["targets"], strict=True):
            if panel["type"] != "heatmap":
                assert set(re.findall(r"\{\{(\w+)\}\}", name)) <= grouped_by(target["expr"]), panel["title"]
        if panel["type"] == "timeseries":
            legend = panel["options"]["legend"]
            assert (legend["displayMode"], legend["placement"], legend["showLegend"]) == ("table", "bottom", True)


def test_thresholds_rise_and_begin_below_everything(board: dict[str, Any]) -> None:
    for panel in panels(board):
        first, *others = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert first is None
        assert others == sorted(set(others)), panel["title"]


def test_every_panel_links_to_the_inspector_with_its_time(board: dict[str, Any]) -> None:
    pattern = rf"\$\{{inspector:raw\}}/({'|'.join(PAGES)})\?from=\$\{{__from\}}&to=\$\{{__to\}}"
    for panel in panels(board):
        for link in (panel["links"][0], panel["fieldConfig"]["defaults"]["links"][0]):
            assert re.match(pattern, link["url"]), panel["title"]


def test_exemplars_are_asked_of_histograms_of_requests_only() -> None:
    asking = [
        target["expr"]
        for document in DOCUMENTS.values()
        for panel in panels(document)
        for target in panel["targets"]
        if target["exemplar"]
    ]
    assert len(asking) > 8
    assert all("_bucket" in expr for expr in asking)


def test_stages_have_the_inspectors_colours() -> None:
    document = DOCUMENTS["vllm-obs-requests.json"]
    (panel,) = (panel for panel in panels(document) if panel["title"] == "Time in stages")
    fixed = {
        override["matcher"]["options"]: override["properties"][0]["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
    }
    assert fixed == STAGE_COLOURS
    assert set(fixed) == set(STAGES)
