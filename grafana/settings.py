"""BoardSettings: the addresses that boards and provisioning are made with."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

TRACE_ID = "{trace_id}"
OUR_DATASOURCE = "prometheus"
MAX_URL_CHARS = 2048

_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True)
class BoardSettings:
    """`datasource` is the uid of the Prometheus data source that boards open with.

    `inspector_url` is where the inspector's pages are. `trace_url` is an address with `{trace_id}` in it, empty
    for Grafana's own view of the traces in the Jaeger beside it. ValueError, in one line, for what is none.
    """

    datasource: str = OUR_DATASOURCE
    inspector_url: str = "http://localhost:8501"
    trace_url: str = ""

    def __post_init__(self) -> None:
        if not _UID.fullmatch(self.datasource):
            raise ValueError(f"{self.datasource:.64} is no uid of a data source: 1 to 40 of A-Z a-z 0-9 _ -")
        _check_url(self.inspector_url)
        if not self.trace_url:
            return
        _check_url(self.trace_url)
        if TRACE_ID not in self.trace_url:
            raise ValueError(f"{self.trace_url:.64} has no {TRACE_ID} in it, where the trace's id goes")
        if self.has_own_datasource:
            raise ValueError(
                "an address of traces goes into our own data source; "
                f"with data source {self.datasource} say it there, under Exemplars"
            )

    @property
    def has_own_datasource(self) -> bool:
        """Whether Grafana has the data source already."""
        return self.datasource != OUR_DATASOURCE


def _check_url(url: str) -> None:
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"an address has {len(url)} characters; at most {MAX_URL_CHARS} may be")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{url:.64} is no address that begins with http:// or https://")


DEFAULTS = BoardSettings()
