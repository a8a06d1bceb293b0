"""How each kind of panel is drawn: its options and the fields of its series."""

from typing import Any

from vllm_obs.grafana.panel import Kind, Panel

_CALCULATIONS = ["lastNotNull", "max"]


def options(panel: Panel) -> dict[str, Any]:
    """The options of its kind: legends stand at the same place with the same figures everywhere."""
    return {
        Kind.LINES: _lines,
        Kind.TILES: _tiles,
        Kind.BARS: _bars,
        Kind.STATES: _states,
        Kind.HEAT: _heat,
        Kind.TABLE: _table,
    }[panel.kind](panel)


def custom_fields(panel: Panel) -> dict[str, Any]:
    """What only panels of its kind know of a series. A gap in the data is drawn as a gap."""
    if panel.kind is Kind.LINES:
        return {
            "drawStyle": "line",
            "lineInterpolation": "stepAfter" if panel.is_stacked else "linear",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.is_stacked else 8,
            "showPoints": "auto",
            "spanNulls": False,
            "axisSoftMin": 0,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.levels else "off"},
        }
    if panel.kind is Kind.STATES:
        return {"fillOpacity": 85, "lineWidth": 0}
    return {}


def _lines(_panel: Panel) -> dict[str, Any]:
    return {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": _CALCULATIONS,
            "sortBy": "Last *",
            "sortDesc": True,
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _tiles(panel: Panel) -> dict[str, Any]:
    is_one = len(panel.queries) == 1 and " by (" not in panel.queries[0].expr
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if panel.levels else "value",
        "graphMode": "area" if is_one and not panel.words else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value" if is_one else "value_and_name",
        "wideLayout": True,
    }


def _bars(_panel: Panel) -> dict[str, Any]:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
        "namePlacement": "left",
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
    }


def _states(_panel: Panel) -> dict[str, Any]:
    return {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "single", "sort": "none"},
    }


def _heat(panel: Panel) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Blues",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "exemplars": {"color": "rgba(229,72,77,0.8)"},
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "auto"},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "show": True, "yHistogram": True, "showColorScale": True},
    }


def _table(_panel: Panel) -> dict[str, Any]:
    return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}}
