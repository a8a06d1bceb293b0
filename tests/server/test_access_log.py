"""A line of the access log names a route; what a client wrote into its target is not kept."""

import logging
from pathlib import Path

import pytest
from http_app import model_config
from uvicorn.middleware import message_logger

from vllm_obs.server.access_log import LOGGER, TRACE_LOGGER, AccessPaths
from vllm_obs.server.app import build_app
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.recorder import MemoryRecorder


def lines_of(targets: list[str], root_path: str = "") -> list[str]:
    """The targets as lines show them; those that get none are left out."""
    build_app(ApiServer(model_config(), ServerConfig(root_path=root_path), MemoryRecorder()))
    build_app(ApiServer(model_config(), ServerConfig(root_path=root_path), MemoryRecorder()))
    logger = logging.getLogger(LOGGER)
    (paths,) = [each for each in logger.filters if isinstance(each, AccessPaths)]
    shown = []
    for target in targets:
        record = logging.makeLogRecord({"args": ("1.2.3.4:5", "GET", target, "1.1", 200)})
        if paths.filter(record):
            assert isinstance(record.args, tuple)
            shown.append(str(record.args[2]))
    return shown


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v1/completions?api_key=s3cret", "/v1/completions"),
        ("/v1/responses/resp_s3cret?x=1", "/v1/responses/{response_id}"),
        ("/v1/models/s3cret/s3cret", "/v1/models/{model_id}"),
        ("/s3cret", "/(unknown)"),
        ("/v1/completions/s3cret", "/(unknown)"),
        ("//s3cret\n", "/(unknown)"),
        ("/metrics?x", "/metrics"),
    ],
)
def test_only_the_route_is_shown(target: str, shown: str) -> None:
    assert [line.replace(":path", "") for line in lines_of([target])] == [shown]


def test_probes_get_no_line_behind_a_root_path_either() -> None:
    assert lines_of(["/livez", "/readyz?x=1", "/v1/models"]) == ["/v1/models"]
    assert lines_of(["/api/livez", "/api/v1/models"], "/api") == ["/v1/models"]


def test_a_trace_shows_no_scope() -> None:
    """uvicorn's own words at level trace."""
    lines_of([])
    logger = logging.getLogger(TRACE_LOGGER)
    shown = [
        message
        for message in ("%s [%d] Started scope=%s", "%s [%d] Receive %s", "%s [%d] Completed")
        if logger.filter(logging.makeLogRecord({"msg": message}))
    ]
    assert shown == ["%s [%d] Receive %s", "%s [%d] Completed"]
    source = Path(str(message_logger.__file__)).read_text()
    assert '"%s [%d] Started scope=%s"' in source
    assert source.count("scope=") == 1


def test_records_of_another_shape_pass() -> None:
    record = logging.makeLogRecord({"args": ("only",)})
    assert AccessPaths([]).filter(record)
    assert record.args == ("only",)
