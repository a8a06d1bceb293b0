"""Links from boards: to the inspector with the same engine and time, to the next panel, to other boards."""

from typing import Any

TAG = "vllm-obs"
PAGES = ("overview", "scheduler", "kv", "requests", "processes", "profile", "incidents")
"""The inspector's pages, as they are called in addresses."""

_TIMES = "from=${__from}&to=${__to}"
_KEPT = "${__url_time_range}&${__all_variables}"


def inspector_url(page: str, has_engine: bool = False) -> str:
    """A page of the inspector over the time of the board (wall ms), and over the engine that was clicked."""
    clicked = "&engine=${__field.labels.engine}" if has_engine else ""
    return f"${{inspector:raw}}/{page}?{_TIMES}{clicked}"


def data_link(page: str, has_engine: bool) -> dict[str, Any]:
    """What a click on a series offers."""
    return {"title": f"Inspector: {page}", "url": inspector_url(page, has_engine), "targetBlank": True}


def board_url(uid: str) -> str:
    """Another board with the same time and variables."""
    return f"/d/{uid}?{_KEPT}"


def panel_links(page: str, next_panel: str, next_uid: str | None) -> list[dict[str, Any]]:
    """In the corner of a panel: the inspector's page, and the next panel's board where that is another one."""
    links: list[dict[str, Any]] = [
        {"title": f"Inspector: {page}", "url": inspector_url(page), "targetBlank": True}
    ]
    if next_uid is not None:
        links.append({"title": f"Next: {next_panel}", "url": board_url(next_uid), "targetBlank": False})
    return links


def board_links() -> list[dict[str, Any]]:
    """Above each board: all boards, and the inspector."""
    plain = {"asDropdown": False, "includeVars": False, "keepTime": False, "tags": [], "tooltip": ""}
    return [
        {
            **plain,
            "type": "dashboards",
            "title": "Boards",
            "tags": [TAG],
            "asDropdown": True,
            "includeVars": True,
            "keepTime": True,
            "targetBlank": False,
            "icon": "external link",
            "url": "",
        },
        {
            **plain,
            "type": "link",
            "title": "Inspector",
            "url": inspector_url("overview"),
            "targetBlank": True,
            "icon": "dashboard",
        },
    ]
