"""A chat template is given itself or in a file, which is refused in one line where it cannot be read."""

from pathlib import Path

import pytest

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.template_file import MAX_TEMPLATE_BYTES, read_template


def test_a_template_is_itself_or_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("hello")
    assert read_template("{{ messages }}") == "{{ messages }}"
    assert read_template(str(tmp_path / "chat.jinja")) == "hello"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, ": No such file or directory"),
        (b"\xff", ": it is not UTF-8 text"),
        (
            b" " * (MAX_TEMPLATE_BYTES + 1),
            f" has {MAX_TEMPLATE_BYTES + 1} bytes; at most {MAX_TEMPLATE_BYTES} are allowed",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_template(str(path))
    assert str(caught.value) == f"--chat-template {path}{reason}"
