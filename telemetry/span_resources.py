"""SpanResources: OpenTelemetry's description of each process of the run, encoded once."""

from collections import OrderedDict

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.otlp_encoding import encode_resource
from vllm_obs.telemetry.span import Process, Value

SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE_ID = "service.instance.id"
DEFAULT_SERVICE = "vllm-obs"
MAX_PROCESSES = 256


class SpanResources:
    """What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say, and which process of the run did the work.

    An instance id given by the environment becomes the first part of every process's own.
    """

    def __init__(self, run: str, version: str = "") -> None:
        self.run = run
        self.version = version
        # Imported here: the SDK costs only who exports.
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        from_environment = OTELResourceDetector().detect().attributes
        self._given = dict(Resource.create({SERVICE_NAME: DEFAULT_SERVICE, **from_environment}).attributes)
        # Where the environment gives none, the SDK draws one at random.
        self._instance = str(from_environment.get(SERVICE_INSTANCE_ID, ""))
        self._encoded: OrderedDict[Process, bytes] = OrderedDict()

    def encoded(self, process: Process) -> bytes:
        """The process's resource field."""
        found = self._encoded.get(process)
        if found is None:
            found = self._encoded[process] = encode_resource(self.attributes(process))
            if len(self._encoded) > MAX_PROCESSES:
                self._encoded.popitem(last=False)
        return found

    def attributes(self, process: Process) -> dict[str, Value]:
        """The process's resource by name."""
        attributes: dict[str, Value] = {name: _plain(value) for name, value in self._given.items()}
        attributes |= {
            SERVICE_INSTANCE_ID: "/".join(filter(None, (self._instance, self.run, process.role))),
            SERVICE_VERSION: attributes.get(SERVICE_VERSION) or self.version or None,
            span_names.RUN: self.run,
            span_names.ROLE: process.role,
            span_names.RANK: process.rank or None,
            "process.pid": process.pid or None,
            **({"host.name": process.host} if process.host else {}),
        }
        return attributes


def _plain(value: object) -> Value:
    if isinstance(value, str | bool | int | float):
        return value
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value)
