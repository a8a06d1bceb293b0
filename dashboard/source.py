"""Source: fetches from the Observer's API, once for all viewers, and says how old what it has is."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

FRESH_SECONDS = 0.4
"""An answer younger than this is nobody's reason to ask again."""
MAX_ANSWERS = 256
TIMEOUT_SECONDS = 5.0
LOCATE_PAUSE_SECONDS = 2.0

Locate = Callable[[], str]
"""The inspector's address as it is now. Raises InspectorError where there is none."""


class Reading(NamedTuple):
    """One answer: `content` is the last good one (None: there was none), `age_seconds` how old it is.

    `trouble` says why it could not be had anew, empty where it was; `status` is HTTP's where it was refused.
    """

    content: Any
    age_seconds: float
    trouble: str = ""
    status: int = 200

    @property
    def is_there(self) -> bool:
        """Whether there is anything to show."""
        return self.content is not None

    @property
    def is_gone(self) -> bool:
        """Whether nobody answered at all, rather than said no."""
        return bool(self.trouble) and self.status == 0


class _Kept(NamedTuple):
    content: Any
    taken_at: float


class Source:
    """The one place that asks the Observer. Threads (one for each viewer's script) may use it at once.

    At most MAX_ANSWERS answers are kept, to be shown with their age while the Observer is away.
    """

    def __init__(self, locate: Locate, is_live: bool = True) -> None:
        self.is_live = is_live
        """Whether time goes on; of a recording it stands still."""
        self._locate = locate
        self._url = ""
        self._located_at = 0.0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    @property
    def url(self) -> str:
        """The Observer's address as last known, empty where it never was."""
        return self._url

    def get(self, path: str, **query: Any) -> Reading:
        """The JSON at `path`, or the last there was with the trouble of now."""
        given = {name: value for name, value in sorted(query.items()) if value is not None}
        key = f"{path}?{given}"
        with self._turn(key):
            kept = self._kept.get(key)
            if kept is not None and time.monotonic() - kept.taken_at < FRESH_SECONDS:
                return Reading(kept.content, 0.0)
            return self._fetch(key, kept, lambda inspector: inspector.get(path, **given))

    def post(self, path: str, body: Any, timeout_seconds: float = TIMEOUT_SECONDS) -> Reading:
        """What an order is answered with; nothing of it is kept."""
        try:
            return Reading(self.inspector(timeout_seconds).post(path, body), 0.0)
        except InspectorError as error:
            return Reading(None, 0.0, str(error), error.status)

    def inspector(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Inspector:
        """Who to ask. Raises InspectorError where there is no run."""
        now = time.monotonic()
        with self._lock:
            if not self._url or now - self._located_at > LOCATE_PAUSE_SECONDS:
                self._located_at = now
                self._url = self._locate()
            return Inspector(self._url, timeout_seconds=timeout_seconds)

    def _fetch(self, key: str, kept: _Kept | None, ask: Callable[[Inspector], Any]) -> Reading:
        try:
            content = ask(self.inspector())
        except InspectorError as error:
            if not error.status:
                self._url = ""
            content = kept.content if kept is not None and not error.status else None
            age = time.monotonic() - kept.taken_at if kept is not None else 0.0
            return Reading(content, age, str(error), error.status)
        self._keep(key, content)
        return Reading(content, 0.0)

    def _keep(self, key: str, content: Any) -> None:
        with self._lock:
            self._kept[key] = _Kept(content, time.monotonic())
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_ANSWERS:
                oldest, _ = self._kept.popitem(last=False)
                self._turns.pop(oldest, None)

    def _turn(self, key: str) -> threading.Lock:
        """Who wants the same thing at once waits for the one who asks for it."""
        with self._lock:
            if len(self._turns) > 4 * MAX_ANSWERS:
                self._turns.clear()
            return self._turns.setdefault(key, threading.Lock())


class _Installed(NamedTuple):
    source: Source
    trace_url: str


_installed: list[_Installed] = []


def install(source: Source, trace_url: str = "") -> None:
    """Make this the source of all pages of this process; `trace_url` has {trace_id} in it, or is empty."""
    _installed[:] = [_Installed(source, trace_url)]


def current() -> Source:
    """The source of this process."""
    assert _installed, "no source was installed"
    return _installed[0].source


def trace_address(trace_id: str) -> str:
    """Where a trace can be read, empty where nobody said."""
    template = _installed[0].trace_url if _installed else ""
    return template.replace("{trace_id}", trace_id) if trace_id else ""
