"""Rules of the house that hold for the whole tree."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("engine", "server", "telemetry", "dashboard", "grafana")
SOURCES = sorted(
    path
    for folder in (*ROOMS, "src/vllm_obs/cli")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {("torch", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("os", "system")}
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "mixin", "mixins"}

HTTP_CLIENTS = ("aiohttp", "http.client", "httpx", "huggingface_hub", "requests", "urllib.request", "urllib3")

TORCH_FREE = (
    "vllm_obs.cli.main",
    "vllm_obs.cli.serve",
    "vllm_obs.cli.bench.command",
    "vllm_obs.engine.args",
    "vllm_obs.engine.model.source",
    "vllm_obs.engine.client_async",
    "vllm_obs.engine.frontend.async_llm",
    "vllm_obs.engine.frontend.tokenizer",
    "vllm_obs.server.serve",
    "vllm_obs.server.app",
)
HEAVY = ("torch", "transformers", "triton", "prometheus_client", "opentelemetry.sdk", "streamlit")
"""FastAPI loads the API of OpenTelemetry by itself; its SDK and exporters must not be loaded."""


SERVING_TELEMETRY = {
    "activity",
    "console",
    "flight_recorder",
    "memory_limits",
    "memory_room",
    "memory_samples",
    "recorder",
    "records",
    "ring_chunk",
    "ring_mirror",
    "ring_shipping",
    "sample_job",
    "stack_dump",
    "trace_ids",
    "watchdog_headers",
    "watchdog_rule",
}
"""What engine/ and server/ may import of telemetry/: what records, and the names of traces."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Parts(NamedTuple):
    """What a source imports by full names, and what it uses that turns data into code."""

    modules: frozenset[str]
    unsafe: list[str]
    has_docstring: bool


@functools.cache
def parts_of(path: Path) -> Parts:
    """Each file is read once for all rules."""
    return read_parts(path.read_text())


def read_parts(source: str) -> Parts:
    tree = ast.parse(source)
    modules: set[str] = set()
    unsafe: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            unsafe.append(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = (node.value.id, node.attr)
            unsafe += [".".join(pair)] if pair in UNSAFE_ATTRIBUTES else []
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            is_off = isinstance(node.value, ast.Constant) and node.value.value is False
            unsafe += [] if is_off else ["allow_pickle"]
    unsafe += [module for module in modules if module.partition(".")[0] in UNSAFE_MODULES]
    return Parts(frozenset(modules), unsafe, bool(ast.get_docstring(tree)))


def in_a_fresh_interpreter(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tree_is_seen() -> None:
    assert len(SOURCES) > 50
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {*ROOMS, "src"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "torch.load('x')",
        "eval('1')",
        "numpy.load('x', allow_pickle=True)",
        "yaml.load(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert read_parts(source).unsafe


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_data_becomes_code(path: Path) -> None:
    assert parts_of(path).unsafe == []


def test_one_factory_makes_every_socket_of_zeromq() -> None:
    """So that none is without its limits."""
    sockets = re.compile(r"\bcontext\.socket\(|zmq\.(?:asyncio|Socket\()")
    makers = {name_of(path) for path in SOURCES if sockets.search(path.read_text())}
    assert makers == {"engine/sockets.py"}


def test_serving_rooms_have_nothing_to_fetch_with() -> None:
    """Whatever a request says, nothing is fetched for it. The hub is asked for a model at the start alone."""
    fetching: set[tuple[str, str]] = set()
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] in ("engine", "server"):
            found = {module for module in parts_of(path).modules if module.startswith(HTTP_CLIENTS)}
            fetching |= {(name_of(path), module) for module in found}
    assert fetching == {("engine/model/hub.py", "huggingface_hub")}


def test_rooms_are_imported_by_their_full_name_only() -> None:
    for path in (*SOURCES, *TESTS):
        bare = {module.partition(".")[0] for module in parts_of(path).modules} & set(ROOMS)
        assert not bare, name_of(path)


def test_serving_rooms_use_only_what_records() -> None:
    used: set[str] = set()
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] in ("engine", "server"):
            modules = parts_of(path).modules
            used |= {module.split(".")[2] for module in modules if module.startswith("vllm_obs.telemetry.")}
    assert used == SERVING_TELEMETRY


def test_no_bare_room_is_importable_where_the_package_is_installed() -> None:
    script = f"import importlib.util as u; print([name for name in {ROOMS} if u.find_spec(name)])"
    assert in_a_fresh_interpreter(script) == "[]\n"


def test_no_bare_room_was_loaded_by_the_tests() -> None:
    assert set(ROOMS) & set(sys.modules) == set()


def test_links_are_the_five_rooms_and_relative() -> None:
    package = ROOT / "src" / "vllm_obs"
    links = {path.name: str(path.readlink()) for path in package.iterdir() if path.is_symlink()}
    assert links == {room: f"../../{room}" for room in ROOMS}


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_the_api_server_loads_is_light(module: str) -> None:
    loaded = in_a_fresh_interpreter(f"import sys, {module}; print(*sys.modules)").split()
    assert [name for name in HEAVY if name in loaded] == []


def test_every_module_says_what_it_owns() -> None:
    silent = [name_of(path) for path in SOURCES if not parts_of(path).has_docstring]
    assert silent == []


def test_package_files_hold_a_docstring_only() -> None:
    for path in SOURCES:
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text()).body) == 1, name_of(path)


def test_module_names_are_nouns_one_could_draw() -> None:
    for path in SOURCES:
        words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
        assert not words & EMPTY_WORDS, name_of(path)


def test_the_model_that_is_installed_is_the_one_that_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    (pinned,) = re.findall(r"^DEFAULT_MODEL := (\S+)$", makefile, re.MULTILINE)
    assert pinned in readme
