"""What is delivered under deploy/ agrees with the server's flags, its routes and its own deadlines."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_obs import __version__
from vllm_obs.cli.serve import build_parser
from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.lifecycle import AT_ONCE_SECONDS, LAST_WORDS_SECONDS
from vllm_obs.server.observer import DRAIN_SECONDS
from vllm_obs.server.public_paths import PROBES, PUBLIC

DEPLOY = Path(__file__).parents[1] / "deploy"
DEFAULTS = ServerConfig()
AFTER_DRAIN_SECONDS = 2 * LAST_WORDS_SECONDS + AT_ONCE_SECONDS + STOP_TIMEOUT_SECONDS + DRAIN_SECONDS
"""What a server may still take once its requests have had their time, at the very most."""


class _Options(dict[str, Any]):
    """A unit may say one thing several times: then its values are joined by spaces."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self and isinstance(value, list) and isinstance(self[key], list):
            value = [*self[key], *value]
        super().__setitem__(key, value)


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, dict_type=_Options)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "vllm-obs.service")
    return {name: " ".join(value.split()) for name, value in parser["Service"].items()}


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def pod(documents: dict[str, Any]) -> dict[str, Any]:
    return dict(documents["Deployment"]["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def flags_of(arguments: list[str]) -> dict[str, Any]:
    return build_parser().parse(arguments)


def test_the_units_command_is_understood_and_its_times_are_the_defaults(service: dict[str, str]) -> None:
    command = service["ExecStart"].split()
    assert command[0].endswith("/bin/vllm-obs")
    assert command[1] == "serve"
    flags = flags_of(command[2:])
    assert flags["shutdown_timeout"] == DEFAULTS.shutdown_timeout
    assert flags["startup_timeout"] == DEFAULTS.startup_timeout


def test_the_unit_leaves_the_server_its_time(service: dict[str, str]) -> None:
    assert int(service["TimeoutStopSec"]) >= DEFAULTS.shutdown_timeout + AFTER_DRAIN_SECONDS
    assert int(service["TimeoutStartSec"]) > DEFAULTS.startup_timeout
    assert int(service["WatchdogSec"]) > DEFAULTS.stall_timeout


def test_the_unit_asks_only_the_main_process_and_speaks_its_protocol(service: dict[str, str]) -> None:
    wanted = {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "78",
        "OOMPolicy": "continue",
        "ExecReload": "/bin/kill -HUP $MAINPID",
    }
    assert {name: service[name] for name in wanted} == wanted
    assert f"VLLM_OBS_RUN_DIR=/run/{service['RuntimeDirectory']}" in service["Environment"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """With a program that is there: where ours is installed is the reader's choice."""
    text = (DEPLOY / "vllm-obs.service").read_text()
    unit = tmp_path / "vllm-obs.service"
    unit.write_text(text.replace("/opt/vllm-obs/.venv/bin/vllm-obs", "/bin/true").replace("User=vllm-obs\n", ""))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "vllm-obs" in line]
    assert said == []


def test_the_pods_command_is_understood_and_listens_where_it_is_asked(container: dict[str, Any]) -> None:
    flags = flags_of(container["args"])
    assert flags["shutdown_timeout"] == DEFAULTS.shutdown_timeout
    assert flags["startup_timeout"] == DEFAULTS.startup_timeout
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("http", flags["port"])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(flags["api_key_file"]).parent) in mounts


def test_probes_ask_routes_that_need_no_key_on_the_api_port(container: dict[str, Any]) -> None:
    asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: get["path"] for kind, get in asked.items()} == {
        "startupProbe": "/startupz",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {get["path"] for get in asked.values()} <= PROBES
    assert {get["port"] for get in asked.values()} == {"http"}


def test_the_pod_has_its_time_to_start_and_to_stop(pod: dict[str, Any], container: dict[str, Any]) -> None:
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > DEFAULTS.startup_timeout
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= before + DEFAULTS.shutdown_timeout + AFTER_DRAIN_SECONDS
    readiness = container["readinessProbe"]
    assert before >= readiness["periodSeconds"] * readiness["failureThreshold"]


def test_the_pod_can_do_little(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"


def test_names_agree(documents: dict[str, Any], container: dict[str, Any]) -> None:
    deployment, service = documents["Deployment"], documents["Service"]
    template = deployment["spec"]["template"]["metadata"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == template["labels"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == container["ports"][0]["name"]
    assert template["annotations"]["prometheus.io/port"] == str(container["ports"][0]["containerPort"])
    assert template["annotations"]["prometheus.io/path"] in PUBLIC
    assert container["image"].endswith(f":{__version__}")
    assert container["image"] in (DEPLOY / "Containerfile").read_text()


def test_the_image_has_the_default_model_and_nothing_of_a_work_tree() -> None:
    model = re.search(r"^DEFAULT_MODEL := (\S+)$", (DEPLOY.parent / "Makefile").read_text(), re.MULTILINE)
    assert model is not None
    assert f"--no-deps {model[1]}\n" in (DEPLOY / "Containerfile").read_text()
    assert {".git", ".venv", "tests"} <= set((DEPLOY.parent / ".dockerignore").read_text().splitlines())


def run_base_of(container: dict[str, Any]) -> Path:
    """Where the manifest has runs, as the container sees it."""
    (base,) = (Path(each["value"]) for each in container["env"] if each["name"] == "VLLM_OBS_RUN_DIR")
    return base


def test_user_and_run_directory_are_the_images(pod: dict[str, Any], container: dict[str, Any]) -> None:
    image = (DEPLOY / "Containerfile").read_text()
    base = run_base_of(container)
    assert "USER 10001:10001\n" in image
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (10001, 10001)
    assert f"ENV VLLM_OBS_RUN_DIR={base} " in image
    assert f"install -d -m 0700 -o 10001 -g 10001 {base.parent}\n" in image


def test_runs_are_made_in_the_pods_volume_which_others_may_write_to(
    container: dict[str, Any], tmp_path: Path
) -> None:
    """A volume with fsGroup is root's own, mode 2777: a run's base must lie below it, never be it."""
    base = run_base_of(container)
    mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    (mount,) = (mount for mount in mounts if base.is_relative_to(mount))
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)
    with pytest.raises(ConfigError, match="can be written by other users"):
        RunDirectory.create(volume)
    with RunDirectory.create(volume / base.relative_to(mount)) as run:
        assert run.path.parent.stat().st_mode & 0o777 == 0o700
