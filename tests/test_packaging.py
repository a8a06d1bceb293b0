"""The wheel: whole, also when it is built from the sdist, and claiming one name only."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from vllm_obs import __version__

ROOT = Path(__file__).parent.parent
ROOMS = ("engine", "server", "telemetry", "dashboard", "grafana")
DATA_SUFFIXES = {".json", ".yml", ".yaml", ".jinja", ".js", ".css", ".toml", ".typed"}


def packaged_files() -> set[str]:
    """What must be in the wheel: every module and data file of the rooms and the CLI."""
    package = ROOT / "src" / "vllm_obs"
    folders = [package, package / "cli", *(ROOT / room for room in ROOMS)]
    found = {package / "__init__.py", package / "__main__.py", package / "py.typed"}
    for folder in folders[1:]:
        found |= {path for path in folder.rglob("*") if path.suffix in DATA_SUFFIXES | {".py"}}
    return {_name_in_wheel(path) for path in found if "__pycache__" not in path.parts}


def _name_in_wheel(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return str(relative.relative_to("src") if relative.parts[0] == "src" else Path("vllm_obs") / relative)


def declared() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower().replace("_", "-")


@pytest.fixture(scope="module")
def wheel_from_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist of this tree, without an isolated environment or a network."""
    made = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "tree"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    _copy(tracked.stdout.decode().split("\0"), source)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", made, source],
        check=True,
        capture_output=True,
        timeout=240,
    )
    (wheel,) = made.glob("*.whl")
    return wheel


def _copy(names: list[str], target: Path) -> None:
    """Copy the tree as a clone has it: links stay links. A build inside the tree would leave folders behind."""
    for name in filter(None, names):
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        elif source.exists():
            copy.write_bytes(source.read_bytes())


def test_the_wheel_from_the_sdist_holds_everything(wheel_from_sdist: Path) -> None:
    with zipfile.ZipFile(wheel_from_sdist) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == packaged_files()


def test_the_wheel_claims_one_top_level_name(wheel_from_sdist: Path) -> None:
    with zipfile.ZipFile(wheel_from_sdist) as wheel:
        (top_level,) = [name for name in wheel.namelist() if name.endswith("top_level.txt")]
        assert wheel.read(top_level).split() == [b"vllm_obs"]
        assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"vllm_obs"}


def test_the_wheel_carries_the_licence_and_the_command(wheel_from_sdist: Path) -> None:
    with zipfile.ZipFile(wheel_from_sdist) as wheel:
        (licence,) = [name for name in wheel.namelist() if name.endswith("LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        (points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert b"vllm-obs = vllm_obs.cli.main:main" in wheel.read(points)


def test_the_unpacked_wheel_works_away_from_the_tree(wheel_from_sdist: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_from_sdist) as wheel:
        wheel.extractall(tmp_path)
    script = "import vllm_obs.server.app, vllm_obs.engine.core_proc, vllm_obs.cli.main as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "vllm_obs" / "cli" / "main.py"


def test_the_sdist_holds_the_tests_and_what_builds_it(wheel_from_sdist: Path) -> None:
    (sdist,) = wheel_from_sdist.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "tests/test_packaging.py",
    } <= names


def test_the_version_is_said_once_and_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert re.search(rf"^## \[({re.escape(__version__)}|Unreleased)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_packages_asked_for_are_declared() -> None:
    runtime = {distribution(requirement) for requirement in declared()[""]}
    asked = {"torch", "triton", "fastapi", "uvicorn", "pyzmq", "msgpack", "prometheus-client", "opentelemetry-sdk"}
    assert asked | {"streamlit"} <= runtime
    assert "prometheus-client==0.22.1" in declared()[""]
    assert "pytest" in {distribution(requirement) for requirement in declared()["test"]}


def test_every_declared_package_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {distribution(line) for line in lines if "==" in line}
    for requirements in declared().values():
        assert {distribution(requirement) for requirement in requirements} <= pinned
    assert "torch==2.13.0" in lines


def test_every_imported_package_is_declared() -> None:
    """Imports of others' packages, less what the standard library and our own code provide."""
    runtime = {distribution(requirement) for requirement in declared()[""]}
    names = {"zmq": "pyzmq", "yaml": "pyyaml", "starlette": "fastapi", "huggingface_hub": "huggingface-hub"}
    for path in (ROOT / "src" / "vllm_obs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names | {"vllm_obs"}:
                    assert names.get(top, top) in runtime, f"{path.name} imports {top}"
