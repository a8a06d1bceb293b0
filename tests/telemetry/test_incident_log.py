"""Incidents are counted once, however often they are recorded, and told as they were recorded last."""

from fact_stream import ENGINE

from vllm_obs.telemetry.catalogue_own import OWN_METRICS
from vllm_obs.telemetry.incident_log import MAX_INCIDENTS, METRIC, IncidentLog
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import IncidentFiled

FILED = IncidentFiled("20260101-000000-stalled-x", "stalled", "x", 7, "It stands.", 5, 0)


def test_one_that_is_recorded_again_takes_its_own_place() -> None:
    store = MetricStore(OWN_METRICS)
    log = IncidentLog(store)
    other = FILED._replace(incident="20260101-000001-stalled-x")
    over = FILED._replace(says="It stood.", filed_at=9)
    for filed in (FILED, other, over):
        log.record(ENGINE, filed)
    assert (log.all(), log.last) == ([over, other], other)
    assert store.value(METRIC, "stalled").number == 2


def test_one_that_is_over_after_a_restart_of_the_observer_is_not_counted_again() -> None:
    store, resumed_store = MetricStore(OWN_METRICS), MetricStore(OWN_METRICS)
    log, resumed = IncidentLog(store), IncidentLog(resumed_store)
    log.record(ENGINE, FILED)
    resumed_store.restore(store.state())
    resumed.restore(log.state())
    over = FILED._replace(says="It stood.", filed_at=9)
    for filed in (over, FILED._replace(incident="20260101-000001-stalled-x")):
        resumed.record(ENGINE, filed)
    assert (resumed.all()[0], resumed_store.value(METRIC, "stalled").number) == (over, 2)


def test_so_many_are_kept() -> None:
    log = IncidentLog(MetricStore(OWN_METRICS))
    for number in range(MAX_INCIDENTS + 5):
        log.record(ENGINE, FILED._replace(incident=str(number)))
    assert [filed.incident for filed in log.all()] == [str(number) for number in range(5, MAX_INCIDENTS + 5)]
