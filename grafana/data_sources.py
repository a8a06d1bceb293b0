"""What Grafana reads at its start: the data sources and where the boards are."""

import json
from string import Template

from vllm_obs.grafana.settings import TRACE_ID, BoardSettings

PROMETHEUS_URL = "http://127.0.0.1:9090"
JAEGER_URL = "http://127.0.0.1:16686"
EXEMPLAR_LABEL = "trace_id"

_CLICKED = "$${__value.raw}"
"""The trace that was clicked, for Grafana: a dollar sign of provisioning files is written twice."""

_PROVIDER = """\
# Where Grafana finds the boards: the directory that VLLM_OBS_BOARDS names, grafana/dashboards or a copy of it.
apiVersion: 1
providers:
  - name: vllm-obs
    folder: vllm-obs
    type: file
    disableDeletion: false
    allowUiUpdates: true
    updateIntervalSeconds: 30
    options:
      path: ${VLLM_OBS_BOARDS}
"""

_DATA_SOURCES = Template("""\
# Prometheus, and the traces of requests behind its exemplars.
apiVersion: 1
datasources:
  - name: Prometheus
    uid: $uid
    type: prometheus
    access: proxy
    url: $prometheus
    isDefault: true
    jsonData:
      httpMethod: POST
      timeInterval: 5s
      exemplarTraceIdDestinations:
        - name: $label
          $destination
          urlDisplayLabel: Trace
  - name: Jaeger
    uid: jaeger
    type: jaeger
    access: proxy
    url: $jaeger
""")


def provisioning(settings: BoardSettings) -> dict[str, str]:
    """The files below provisioning/ by their paths. A data source of one's own needs none of ours."""
    files = {"dashboards/boards.yml": _PROVIDER}
    if settings.has_own_datasource:
        return files
    return files | {"datasources/datasources.yml": _data_sources(settings)}


def _data_sources(settings: BoardSettings) -> str:
    address = settings.trace_url.replace("$", "$$").replace(TRACE_ID, _CLICKED)
    return _DATA_SOURCES.substitute(
        uid=settings.datasource,
        prometheus=PROMETHEUS_URL,
        jaeger=JAEGER_URL,
        label=EXEMPLAR_LABEL,
        destination=f"url: {json.dumps(address)}" if address else "datasourceUid: jaeger",
    )
