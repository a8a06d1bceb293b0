"""Source: fetches from the Observer's API, once for all viewers, and says how old what it has is."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from vllm_obs.telemetry.inspect_client import Fetched, Inspector, InspectorError

FRESH_SECONDS = 0.4
"""An answer younger than this is nobody's reason to ask again."""
MAX_ANSWERS = 256
MAX_KEPT_BYTES = 32 << 20
"""Of the JSON of all kept answers together."""
UNWANTED_SECONDS = 300.0
"""What nobody asked for in so long is not kept."""
STATE_PATH = "/inspect/state"
"""Its answer says of which run it is."""
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


class Replaced(NamedTuple):
    """A run that another took the place of, and when that was seen (time.monotonic())."""

    run: str
    seen_at: float


class _Kept(NamedTuple):
    content: Any
    num_bytes: int
    taken_at: float
    wanted_at: float


class _Located(NamedTuple):
    """Where the inspector was at `at`; `error` says why nobody knew, where there is no `url`."""

    url: str = ""
    at: float = float("-inf")
    error: str = ""


class Source:
    """The one place that asks the Observer. Threads (one for each viewer's script) may use it at once.

    At most MAX_ANSWERS answers of MAX_KEPT_BYTES together are kept, to be shown with their age while the Observer
    is away. The Observer is looked for anew every LOCATE_PAUSE_SECONDS; of a run that another took the place of,
    nothing is kept.
    """

    def __init__(self, locate: Locate, is_live: bool = True, name: str = "") -> None:
        self.name = name
        """What people call the server, where there are several."""
        self.is_live = is_live
        """Whether time goes on; of a recording it stands still."""
        self._locate = locate
        self._located = _Located()
        self._locating = threading.Lock()
        self._run = ""
        self._replaced: Replaced | None = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """In the order in which they were last asked for."""
        self._num_kept_bytes = 0
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    @property
    def url(self) -> str:
        """The Observer's address as last known, empty where it never was."""
        return self._located.url

    @property
    def replaced(self) -> Replaced | None:
        """The run before this one, None while there was no other."""
        return self._replaced

    def get(self, path: str, **query: Any) -> Reading:
        """The JSON at `path`, or the last there was with the trouble of now."""
        given = {name: value for name, value in sorted(query.items()) if value is not None}
        key = f"{path}?{given}"
        with self._turn(key):
            kept = self._wanted(key)
            if kept is not None and time.monotonic() - kept.taken_at < FRESH_SECONDS:
                return Reading(kept.content, 0.0)
            reading = self._fetch(key, kept, lambda inspector: inspector.fetch(path, **given))
        if path == STATE_PATH and not reading.trouble:
            self._note_run(reading.content, key)
        return reading

    def post(self, path: str, body: Any, timeout_seconds: float = TIMEOUT_SECONDS) -> Reading:
        """What an order is answered with; nothing of it is kept."""
        try:
            return Reading(self.inspector(timeout_seconds).post(path, body), 0.0)
        except InspectorError as error:
            return Reading(None, 0.0, str(error), error.status)

    def inspector(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Inspector:
        """Who to ask. Raises InspectorError where there is no run.

        One thread looks for it at a time; others wait for what it finds. That there is none is believed as long.
        """
        if not self._is_known():
            with self._locating:
                if not self._is_known():
                    self._located = self._found()
        located = self._located
        if not located.url:
            raise InspectorError(located.error or "the inspector does not answer")
        return Inspector(located.url, timeout_seconds=timeout_seconds)

    def _is_known(self) -> bool:
        return time.monotonic() - self._located.at <= LOCATE_PAUSE_SECONDS

    def _found(self) -> _Located:
        try:
            return _Located(self._locate(), time.monotonic())
        except InspectorError as error:
            # A known one may only have been too slow to say of which run it is: asked, it tells more.
            return _Located(self._located.url, time.monotonic(), str(error))

    def _lose(self, url: str) -> None:
        """It does not answer there: look for it when somebody asks next."""
        located = self._located
        if located.url == url:
            self._located = _Located()

    def _fetch(self, key: str, kept: _Kept | None, ask: Callable[[Inspector], Fetched]) -> Reading:
        inspector = None
        try:
            inspector = self.inspector()
            fetched = ask(inspector)
        except InspectorError as error:
            if inspector is not None and not error.status:
                self._lose(inspector.url)
            content = kept.content if kept is not None and not error.status else None
            age = time.monotonic() - kept.taken_at if kept is not None else 0.0
            return Reading(content, age, str(error), error.status)
        self._keep(key, fetched)
        return Reading(fetched.content, 0.0)

    def _note_run(self, state: Any, key: str) -> None:
        """Of another run than before: what is kept but for this answer, of `key`, is of one that has ended."""
        run = str(state.get("run", "")) if isinstance(state, dict) else ""
        if not run:
            return
        with self._lock:
            before, self._run = self._run, run
            if before in ("", run):
                return
            self._replaced = Replaced(before, time.monotonic())
            for other in [each for each in self._kept if each != key]:
                self._drop(other)

    def _wanted(self, key: str) -> _Kept | None:
        """What is kept of it, which is wanted from now on."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept[key] = kept._replace(wanted_at=time.monotonic())
                self._kept.move_to_end(key)
            return kept

    def _keep(self, key: str, fetched: Fetched) -> None:
        now = time.monotonic()
        with self._lock:
            if key in self._kept:
                self._num_kept_bytes -= self._kept.pop(key).num_bytes
            self._kept[key] = _Kept(fetched.content, fetched.num_bytes, now, now)
            self._num_kept_bytes += fetched.num_bytes
            while self._kept and self._is_too_much(now):
                self._drop(next(iter(self._kept)))

    def _is_too_much(self, now: float) -> bool:
        oldest = next(iter(self._kept.values()))
        is_unwanted = now - oldest.wanted_at > UNWANTED_SECONDS
        return len(self._kept) > MAX_ANSWERS or self._num_kept_bytes > MAX_KEPT_BYTES or is_unwanted

    def _drop(self, key: str) -> None:
        self._num_kept_bytes -= self._kept.pop(key).num_bytes
        self._turns.pop(key, None)

    def _turn(self, key: str) -> threading.Lock:
        """Who wants the same thing at once waits for the one who asks for it."""
        with self._lock:
            if len(self._turns) > 4 * MAX_ANSWERS:
                self._turns.clear()
            return self._turns.setdefault(key, threading.Lock())


class _Installed(NamedTuple):
    sources: tuple[Source, ...]
    trace_url: str


_installed: list[_Installed] = []
_choices: list[Callable[[], int | None]] = []


def install(source: Source, trace_url: str = "", others: Sequence[Source] = ()) -> None:
    """Make these the sources of all pages of this process; `trace_url` has {trace_id} in it, or is empty."""
    _installed[:] = [_Installed((source, *others), trace_url)]


def choose_by(choice: Callable[[], int | None]) -> None:
    """Ask this which of several sources the page that is being drawn is of."""
    _choices[:] = [choice]


def servers() -> tuple[Source, ...]:
    """All sources of this process."""
    return _installed[0].sources if _installed else ()


def current() -> Source:
    """The source of the page that is being drawn; of several the first where nothing else was chosen."""
    found = servers()
    assert found, "no source was installed"
    number = _choices[0]() if len(found) > 1 and _choices else None
    return found[number if number is not None and number < len(found) else 0]


def trace_address(trace_id: str) -> str:
    """Where a trace can be read, empty where nobody said."""
    template = _installed[0].trace_url if _installed else ""
    address = template.replace("{trace_id}", quote(trace_id, safe="")) if trace_id else ""
    # Its own signs stay; those that would end a link in Markdown do not.
    return quote(address, safe=":/?#[]@!$&'*+,;=%~")
