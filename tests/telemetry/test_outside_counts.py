from metric_facts import MetricFacts

from vllm_obs.telemetry.outside_counts import OutsidePorts


class Totals:
    """Totals that the test moves."""

    def __init__(self) -> None:
        self.violations = {"stages": 0.0}
        self.failures = {"spans": 0.0, "metrics": 0.0}
        self.dropped = {"queue_full": 0.0, "unreachable": 0.0}
        self.over_budget, self.left_out = 7.0, 9.0

    def ports(self) -> OutsidePorts:
        return OutsidePorts(
            exporter_failures=lambda: self.failures,
            dropped_spans=lambda: self.dropped,
            over_budget_spans=lambda: {"": self.over_budget},
            left_out_links=lambda: {"": self.left_out},
            violations=lambda: self.violations,
            failed_saves=lambda: {"": 3.0},
            cpu_seconds=lambda: {"": 1.5},
        )


def shown(facts: MetricFacts) -> dict[str, float]:
    names = ("exporter", "dropped", "over_budget", "left_out", "invariant", "checkpoint", "telemetry_cpu")
    return facts.samples(*(f"vllm_obs_{name}" for name in names), view=facts.view)


def test_totals_are_shown_as_they_are() -> None:
    totals = Totals()
    facts = MetricFacts(totals.ports())
    totals.violations["stages"], totals.failures["spans"] = 2, 3
    totals.dropped = {"queue_full": 4, "unreachable": 1}
    expected = {
        "vllm_obs_exporter_failures_total{signal=spans}": 3,
        "vllm_obs_dropped_spans_total{reason=queue_full}": 4,
        "vllm_obs_dropped_spans_total{reason=unreachable}": 1,
        "vllm_obs_over_budget_spans_total": 7,
        "vllm_obs_left_out_span_links_total": 9,
        "vllm_obs_invariant_violations_total{invariant=stages}": 2,
        "vllm_obs_checkpoint_failures_total": 3,
        "vllm_obs_telemetry_cpu_seconds_total": 1.5,
    }
    assert shown(facts) == expected
    assert shown(facts) == expected


def test_totals_that_begin_anew_and_totals_that_go_on_both_only_grow() -> None:
    totals = Totals()
    facts = MetricFacts(totals.ports())
    totals.violations["stages"] = totals.failures["spans"] = totals.dropped["queue_full"] = 5
    shown(facts)
    resumed = facts.new_view()
    resumed.restore(facts.view.state())
    facts.view = resumed
    # An exporter counts from 0 again, even where it has passed its predecessor; a law's breaches were kept.
    totals.violations["stages"], totals.failures["spans"], totals.dropped["queue_full"] = 6, 7, 2
    assert shown(facts)["vllm_obs_invariant_violations_total{invariant=stages}"] == 6
    assert shown(facts)["vllm_obs_exporter_failures_total{signal=spans}"] == 12
    assert shown(facts)["vllm_obs_dropped_spans_total{reason=queue_full}"] == 7
    totals.dropped["queue_full"] = 4
    assert shown(facts)["vllm_obs_dropped_spans_total{reason=queue_full}"] == 9


def test_a_law_that_nobody_knows_is_another() -> None:
    totals = Totals()
    facts = MetricFacts(totals.ports())
    totals.violations["gravity"] = 1
    assert shown(facts)["vllm_obs_invariant_violations_total{invariant=other}"] == 1
