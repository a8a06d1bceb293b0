"""What stands in grafana/ is what is made, and what is exported is all that Prometheus and Grafana need."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_obs.grafana.export import HOME, differing, exported_files, made_files, write_files
from vllm_obs.grafana.settings import BoardSettings

DATA_SOURCES = "provisioning/datasources/datasources.yml"


def provisioned(settings: BoardSettings) -> list[dict[str, Any]]:
    return list(yaml.safe_load(made_files(settings)[DATA_SOURCES])["datasources"])


def test_the_committed_files_are_current() -> None:
    folders = ("dashboards", "provisioning")
    found = {str(path.relative_to(HOME)) for folder in folders for path in (HOME / folder).rglob("*.*")}
    assert found == set(made_files())
    assert differing(HOME, made_files()) == [], "run python -m vllm_obs.grafana.export"


def test_all_that_is_needed_is_exported() -> None:
    names = set(exported_files())
    assert names > set(made_files()) | {"prometheus.yml", "compose.yml"}
    assert {name.partition("/")[0] for name in names} == {
        "alerts",
        "compose.yml",
        "dashboards",
        "prometheus.yml",
        "provisioning",
        "rules",
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_what_is_exported(tmp_path: Path) -> None:
    write_files(tmp_path, exported_files())
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "alerts/" in checked.stdout


def test_boards_open_with_the_data_source_that_is_provisioned() -> None:
    prometheus, jaeger = provisioned(BoardSettings())
    (destination,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert (destination["name"], destination["datasourceUid"]) == ("trace_id", jaeger["uid"])
    for text in made_files().values():
        if text.startswith("{"):
            (chosen,) = (each for each in json.loads(text)["templating"]["list"] if each["type"] == "datasource")
            assert chosen["current"]["value"] == prometheus["uid"]


def test_the_provider_names_the_directory_that_compose_sets() -> None:
    (provider,) = yaml.safe_load(made_files()["provisioning/dashboards/boards.yml"])["providers"]
    assert provider["options"]["path"] == "${VLLM_OBS_BOARDS}"
    compose = yaml.safe_load((HOME / "compose.yml").read_text())
    boards = compose["services"]["grafana"]["environment"]["VLLM_OBS_BOARDS"]
    assert f"{Path(boards).parent}" in {each.split(":")[1] for each in compose["services"]["grafana"]["volumes"]}
    assert (HOME / Path(boards).name).is_dir()


def test_compose_says_that_it_is_untested_and_listens_on_loopback() -> None:
    text = (HOME / "compose.yml").read_text()
    assert text.index("UNTESTED") < text.index("services:")
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"prometheus", "grafana", "jaeger"}
    for service in services.values():
        assert "127.0.0.1" in json.dumps([service.get("command"), service.get("environment")])


def test_a_trace_url_is_where_exemplars_lead() -> None:
    prometheus, _ = provisioned(BoardSettings(trace_url="https://traces.example/t/{trace_id}?pay=$1"))
    (destination,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["url"] == "https://traces.example/t/$${__value.raw}?pay=$$1"
    assert "datasourceUid" not in destination


def test_with_a_data_source_of_ones_own_none_is_provisioned() -> None:
    files = made_files(BoardSettings(datasource="mine"))
    assert DATA_SOURCES not in files
    board = json.loads(files["dashboards/vllm-obs-engine.json"])
    assert board["templating"]["list"][0]["current"] == {"text": "mine", "value": "mine"}


def test_the_inspectors_address_is_the_boards_variable() -> None:
    board = json.loads(
        made_files(BoardSettings(inspector_url="https://see.example"))["dashboards/vllm-obs-fleet.json"]
    )
    (inspector,) = (each for each in board["templating"]["list"] if each["name"] == "inspector")
    assert (inspector["query"], inspector["current"]["value"]) == ("https://see.example", "https://see.example")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"datasource": ""}, "no uid"),
        ({"datasource": "a b"}, "no uid"),
        ({"datasource": "x" * 41}, "1 to 40"),
        ({"inspector_url": ""}, "no address"),
        ({"inspector_url": "localhost:8501"}, "no address"),
        ({"inspector_url": "javascript:alert(1)"}, "no address"),
        ({"inspector_url": "http://a b"}, "no address"),
        ({"inspector_url": "http://[x"}, "no address"),
        ({"inspector_url": "http://x/" + "y" * 2048}, "2057 characters; at most 2048"),
        ({"trace_url": "http://x/y"}, "has no {trace_id}"),
        ({"trace_url": "ftp://x/{trace_id}"}, "no address"),
        ({"trace_url": "http://x/{trace_id}", "datasource": "mine"}, "under Exemplars"),
    ],
)
def test_what_is_no_address_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BoardSettings(**given)
