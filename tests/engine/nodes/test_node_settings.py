"""What must agree between hosts is compared, and what differs is named."""

from dataclasses import replace
from pathlib import Path

from agent_process import cluster_config

from vllm_obs.engine.nodes.node_settings import differences, node_settings, weights_digest


def test_hosts_of_one_command_agree_wherever_their_files_lie() -> None:
    host = cluster_config()
    model = replace(host.model, path="/elsewhere", tokenizer="/elsewhere", served_model_names=("other",))
    parallel = replace(host.parallel, node_rank=1, master_addr="the-same-host.by-name")
    other = replace(host, model=model, parallel=parallel, run_dir="/run")
    assert differences(node_settings(host), node_settings(other)) == []


def test_what_differs_is_named_with_both_values() -> None:
    host = cluster_config()
    other = replace(host, model=replace(host.model, dtype="bfloat16"))
    told = differences(node_settings(host), node_settings(other))
    assert told == ["model.dtype is bfloat16 there and float32 here"]


def test_another_version_is_a_difference() -> None:
    settings = node_settings(cluster_config())
    assert differences(settings, {**settings, "torch": "0.1"}) == [
        f"torch is 0.1 there and {settings['torch']} here"
    ]


def test_of_many_differences_a_few_are_told() -> None:
    settings = node_settings(cluster_config())
    assert differences(settings, {})[-1] == f"{len(settings) - 3} more"
    assert differences(settings, [1]) == ["it tells nothing of its settings"]


def test_other_weights_are_seen_by_their_ends_and_sizes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
        (place / "model.safetensors").write_bytes(b"head" + bytes(100) + b"tail")
        (place / "config.json").write_text("{}")
    assert weights_digest(str(here)) == weights_digest(str(there)) != ""
    for content in (
        b"HEAD" + bytes(100) + b"tail",
        b"head" + bytes(100) + b"TAIL",
        b"head" + bytes(101) + b"tail",
    ):
        (there / "model.safetensors").write_bytes(content)
        assert weights_digest(str(here)) != weights_digest(str(there))
    assert weights_digest(str(here / "model.safetensors")) != ""
    assert weights_digest("") == weights_digest(str(tmp_path / "nothing")) == ""
