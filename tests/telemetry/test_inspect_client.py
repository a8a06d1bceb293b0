"""The client of the inspector API turns whatever goes wrong into its own error, also odd names."""

import pytest

from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

NOBODY = Inspector("http://127.0.0.1:9", timeout_seconds=5.0)


@pytest.mark.parametrize("path", ["/inspect/requests/ü", "/inspect/requests/a b", "/inspect/\r\nx: y", "/\x00"])
def test_path_that_cannot_be_asked_for_is_refused_and_nobody_is_gone(path: str) -> None:
    with pytest.raises(InspectorError, match="is no path of an inspector") as caught:
        NOBODY.get(path)
    assert caught.value.status == 400
    assert str(caught.value).isascii()


def test_nobody_there_has_no_status() -> None:
    with pytest.raises(InspectorError, match="does not answer") as caught:
        NOBODY.get("/inspect/state")
    assert caught.value.status == 0
