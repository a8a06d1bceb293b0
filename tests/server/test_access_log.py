"""A line of the access log names a route; what a client wrote into its target is not kept."""

import logging
import re
from pathlib import Path

import pytest
from http_app import model_config
from uvicorn.middleware import message_logger

from vllm_obs.engine.log import configure_logging
from vllm_obs.server.access_log import LOGGER, TRACE_LOGGER, AccessPaths
from vllm_obs.server.app import build_app
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.http_server import HttpServer
from vllm_obs.server.request_id import http_id
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


def test_a_line_ends_with_our_id_of_the_request() -> None:
    record = logging.makeLogRecord({"msg": '%s - "%s %s HTTP/%s" %d', "args": ("1:2", "GET", "/v1", "1.1", 200)})
    token = http_id.set("00c0ffee")
    try:
        assert AccessPaths([]).filter(record)
    finally:
        http_id.reset(token)
    assert record.getMessage() == '1:2 - "GET /(unknown) HTTP/1.1" 200 OK (00c0ffee)'


def test_lines_have_the_form_of_our_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, access = logging.getLogger(), logging.getLogger(LOGGER)
    for logger in (root, access, logging.getLogger("uvicorn"), logging.getLogger("uvicorn.error")):
        monkeypatch.setattr(logger, "handlers", [])  # who was here before may have left its own
        monkeypatch.setattr(logger, "propagate", True)
    configure_logging("APIServer")
    HttpServer(build_app(ApiServer(model_config(), ServerConfig(), MemoryRecorder())), ServerConfig())
    access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/v1/models", "1.1", 200)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    said = capsys.readouterr()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} INFO    \[APIServer\] uvicorn.access: 1.2.3.4:5 - .*\n", said.out)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} WARNING \[APIServer\] uvicorn.error: Invalid HTTP .*\n", said.err)


def test_records_of_another_shape_pass() -> None:
    record = logging.makeLogRecord({"args": ("only",)})
    assert AccessPaths([]).filter(record)
    assert record.args == ("only",)
