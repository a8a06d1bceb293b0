from pathlib import Path

from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.catalogue_page import metrics_page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == metrics_page(), "run python -m vllm_obs.telemetry.catalogue_page > docs/metrics.md"


def test_every_metric_has_a_row() -> None:
    rows = [line for line in metrics_page().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(metric.name for metric in CATALOGUE)
