"""The tables of a profile: operators, kernels of a device, functions by their CPU time, and the flame graph."""

from typing import Any
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard.canvas.flame_graph import flame_graph
from vllm_obs.dashboard.figures import number, seconds, share
from vllm_obs.dashboard.frame import escape, said, teach

MAX_ROWS = 400
COLLAPSED = "merged.collapsed.txt"
COLLAPSED_RAN = "merged.ran.collapsed.txt"


def operator_tables(tables: list[dict[str, Any]]) -> None:
    """One rank's table at a time."""
    by_role = {str(table["role"]): table for table in tables}
    role = st.selectbox("Rank", list(by_role), key="profile-role") if len(by_role) > 1 else next(iter(by_role))
    table = by_role[str(role)]
    if not table["num_steps"]:
        teach("No step ran meanwhile", "Take the profile again while requests are served.")
        return
    st.markdown(
        f"{escape(str(role))}: {number(table['num_steps'])} steps ({table['first_step']} to {table['last_step']}),"
        f" median {seconds(table['median_step_seconds'])}, longest {seconds(table['max_step_seconds'])}. "
        f"Operators account for {share(table['accounted_share'])} of the {seconds(table['forward_seconds'])} that "
        "the forward passes took; the rest is Python between them."
    )
    rows = table["operators"][:MAX_ROWS]
    st.dataframe(
        {
            "Operator": [row["operator"] for row in rows],
            "Phase": [row["phase"] for row in rows],
            "Calls": [row["num_calls"] for row in rows],
            "Self ms": [1e3 * row["self_seconds"] for row in rows],
            "Total ms": [1e3 * row["total_seconds"] for row in rows],
            "Of steps": [100 * row["share_of_steps"] for row in rows],
            "Of forward": [None if (part := row["share_of_forward"]) is None else 100 * part for row in rows],
        },
        hide_index=True,
        height=388,
        key="operators",
        column_config={
            "Self ms": st.column_config.NumberColumn(format="%.1f"),
            "Total ms": st.column_config.NumberColumn(format="%.1f"),
            "Of steps": st.column_config.ProgressColumn(format="%.1f %%", min_value=0, max_value=100),
            "Of forward": st.column_config.NumberColumn(format="%.1f %%"),
        },
    )
    kernel_table(table)


def kernel_table(table: dict[str, Any]) -> None:
    """What ran on the rank's device; nothing where there is none, or of a profile before there was this table."""
    rows = table.get("kernels", [])[:MAX_ROWS]
    if not rows:
        return
    st.markdown(
        f"On the device: {seconds(table['device_seconds'])} of kernels and copies. "
        f"It was busy for {seconds(table['device_busy_seconds'])} of the {seconds(table['step_seconds'])} "
        "of the steps."
    )
    st.dataframe(
        {
            "Kernel": [row["kernel"] for row in rows],
            "Kind": [row["kind"] for row in rows],
            "Calls": [row["num_calls"] for row in rows],
            "Device ms": [1e3 * row["device_seconds"] for row in rows],
            "Mean µs": [1e6 * row["mean_seconds"] for row in rows],
            "Of kernels": [100 * row["share_of_device"] for row in rows],
            "TFLOP/s": [_scaled(row.get("flops_per_second"), 1e12) for row in rows],
            "GB/s": [_scaled(row.get("bytes_per_second"), 1e9) for row in rows],
        },
        hide_index=True,
        height=388,
        key="kernels",
        column_config={
            "Device ms": st.column_config.NumberColumn(format="%.2f"),
            "Mean µs": st.column_config.NumberColumn(format="%.1f"),
            "Of kernels": st.column_config.ProgressColumn(format="%.1f %%", min_value=0, max_value=100),
            "TFLOP/s": st.column_config.NumberColumn(format="%.1f"),
            "GB/s": st.column_config.NumberColumn(format="%.1f"),
        },
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def sample_tables(profile: dict[str, Any]) -> None:
    """The flame graph of all processes, and one role's functions."""
    sampling = profile.get("sampling") or {}
    if sampling.get("says"):
        st.caption(f"Sampled with {escape(str(sampling['sampler']))}: {said(str(sampling['says']))}.")
    for missing in sampling.get("missing", []):
        st.warning(f"{escape(str(missing))} did not answer in time: it may hang; only py-spy could see where.")
    names = {file["name"] for file in profile["files"]}
    if COLLAPSED in names:
        place = f"profiles/{quote(profile['profile'], safe='')}/"
        flame_graph(place + COLLAPSED, place + COLLAPSED_RAN if COLLAPSED_RAN in names else "")
    by_role = {str(role["role"]): role for role in profile["samples"]}
    chosen = by_role[str(st.selectbox("Process", list(by_role), key="profile-process"))]
    ran = f", {number(chosen['num_ran'])} of them ran" if chosen["knows_who_ran"] else ""
    st.markdown(f"{number(chosen['num_samples'])} samples{ran}, {seconds(chosen['cpu_seconds'])} of CPU.")
    rows = sorted(chosen["functions"], key=_by_cpu, reverse=True)[:MAX_ROWS]
    st.dataframe(
        {
            "Function": [row["function"] for row in rows],
            "File": [row["file"] for row in rows],
            "CPU ms": [1e3 * row["self_cpu_seconds"] for row in rows],
            "Ran": [row["self_ran"] if chosen["knows_who_ran"] else None for row in rows],
            "Samples": [row["self_samples"] for row in rows],
        },
        hide_index=True,
        height=388,
        key="functions",
        column_config={"CPU ms": st.column_config.NumberColumn(format="%.1f")},
    )


def _by_cpu(function: dict[str, Any]) -> tuple[float, int, int]:
    return function["self_cpu_seconds"], function["self_ran"], function["self_samples"]
