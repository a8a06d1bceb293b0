"""A model that cannot be served: 78, one line, never ready, and nobody left; eight of them at once."""

import contextlib
import http.client
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bad_start import environment, processes_with, serve_command
from ends_with_pytest import ends_with_pytest
from gguf_files import write_gguf
from serving import free_port
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.model.source import resolve_model

DEADLINE_SECONDS = 30.0
"""Three times the promised ten, for all of them together."""

WIDE = TINY_CONFIG | {"vocab_size": 49_152}
"""With as many rows as the default model's tokenizer has tokens."""


def without_weights(place: Path) -> list[str]:
    (write_model(place, TINY_CONFIG) / "model.safetensors").unlink()
    return [str(place)]


def corrupt_safetensors(place: Path) -> list[str]:
    (write_model(place, TINY_CONFIG) / "model.safetensors").write_bytes(bytes(range(256)) * 30)
    return [str(place)]


def truncated_safetensors(place: Path) -> list[str]:
    file = write_model(place, TINY_CONFIG) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return [str(place)]


def truncated_gguf(place: Path) -> list[str]:
    place.mkdir()
    file = write_gguf(place / "cut.gguf")
    file.write_bytes(file.read_bytes()[:-100])
    return [str(file)]


def garbage_in_config(place: Path) -> list[str]:
    (write_model(place, TINY_CONFIG) / "config.json").write_bytes(b"\xff\xfe{\x00")
    return [str(place)]


def wrong_vocabulary_size(place: Path) -> list[str]:
    write_model(place, TINY_CONFIG)
    (place / "config.json").write_text(json.dumps(TINY_CONFIG | {"vocab_size": 97}))
    return [str(place)]


def tokenizer_of_another_model(place: Path) -> list[str]:
    return [str(write_model(place, TINY_CONFIG)), "--tokenizer", resolve_model(None).path]


def garbage_in_tokenizer(place: Path) -> list[str]:
    (write_model(place, WIDE) / "tokenizer.json").write_text('{"version": "1.0", "model": 7}')
    return [str(place)]


CASES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no weights": (without_weights, "there is no model.safetensors"),
    "corrupt safetensors": (corrupt_safetensors, "corrupt safetensors file"),
    "truncated safetensors": (truncated_safetensors, "truncated: tensor"),
    "truncated GGUF": (truncated_gguf, "truncated: tensor"),
    "garbage in config.json": (garbage_in_config, "config.json: not valid JSON"),
    "wrong vocabulary size": (wrong_vocabulary_size, "but the configuration asks for [97, 32]"),
    "another model's tokenizer": (tokenizer_of_another_model, "it has 49152 tokens, the model 96"),
    "garbage in tokenizer.json": (garbage_in_tokenizer, "tokenizer.json: not a tokenizer"),
}


class Start(NamedTuple):
    """One start, while it runs and afterwards."""

    process: "subprocess.Popen[str]"
    port: int
    statuses: list[int]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Start]]]:
    """All of them, started at once, asked whether they are ready until they end; and their run directory."""
    places = tmp_path_factory.mktemp("models")
    with tempfile.TemporaryDirectory(prefix="vo-") as base:
        starts = {}
        for number, (name, (make, _)) in enumerate(CASES.items()):
            port, words = free_port(), make(places / str(number))
            command = serve_command(*words, "--host", "127.0.0.1", "--port", str(port))
            pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
            env = environment({"VLLM_OBS_RUN_DIR": base})
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, text=True, **pipes)
            starts[name] = Start(ends_with_pytest(process), port, [])
        try:
            await_ends(starts)
            yield Path(base), starts
        finally:
            for start in starts.values():
                start.process.kill()
                start.process.communicate()


def await_ends(starts: dict[str, Start]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(start.process.poll() is None for start in starts.values()):
        assert time.monotonic() < deadline, [name for name, s in starts.items() if s.process.poll() is None]
        for start in starts.values():
            with contextlib.suppress(OSError, http.client.HTTPException):
                start.statuses.append(ready_status(start.port))
        time.sleep(0.05)


def ready_status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_each_says_in_one_line_what_is_wrong(ended: tuple[Path, dict[str, Start]]) -> None:
    _, starts = ended
    for name, start in starts.items():
        out, err = start.process.communicate()
        assert start.process.returncode == 78, (name, err)
        assert out == "", name
        assert (err.count("\n"), err.startswith("vllm-obs: ")) == (1, True), (name, err)
        assert CASES[name][1] in err, (name, err)
        assert set(start.statuses) <= {503}, name


def test_nobody_and_nothing_but_records_is_left(ended: tuple[Path, dict[str, Start]]) -> None:
    base, starts = ended
    pids = {str(start.process.pid) for start in starts.values()}
    assert processes_with(str(base)) == []
    assert [path for path in base.rglob("*") if not (path.is_file() or path.is_dir())] == []
    named = [path for path in Path("/dev/shm").iterdir() if pids & set(path.name.replace("-", "_").split("_"))]
    assert named == []
