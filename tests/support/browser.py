"""A real Chromium for the tests of pages, what can be read on them, and what went wrong in them."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZE = {"width": 1400, "height": 1000}
WAIT_MS = 30_000
LOOK_MS = 100
"""Each look has the page laid out again."""
PROBES = ("/_stcore/health", "/_stcore/host-config")
"""Streamlit asks for these below the page's path first, and then where they are."""
TABLES = """grids => grids.map(grid => [...grid.rows].map(row => [...row.cells].map(cell => cell.textContent)))"""
MARK = """names => {
  window.marked = [...document.querySelectorAll(names)];
  return window.marked.length;
}"""
MARKED = "[data-testid=stMetric], [data-testid=stDataFrame], [data-testid=stMarkdown], .st-key-strip, canvas"
REPLACED = "() => window.marked.filter(node => !node.isConnected).map(node => node.outerHTML.slice(0, 200))"
HEADER_PIXELS, ROW_PIXELS, CHOICE_PIXELS = 35, 35, 16
"""Of a table: the height of its head and of a row, and where the box to choose a row stands."""

Row = dict[str, str]


class View:
    """One page in the browser.

    `errors` are its scripts', `complaints` what the console says of failed requests and the like, `outside` the
    addresses on other hosts, `streams` the event streams that were opened.
    """

    def __init__(self, page: "playwright.Page") -> None:
        self.page = page
        self.errors: list[str] = []
        self.complaints: list[str] = []
        self.outside: list[str] = []
        self.streams: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note_request(request.url))
        page.on("console", self._note_line)

    def open(self, address: str) -> None:
        """Go there, and wait until the page has been drawn for the first time."""
        self.page.goto(address, timeout=WAIT_MS)
        self.page.wait_for_selector("[data-testid=stApp]", timeout=WAIT_MS)
        self.settle()

    def settle(self) -> None:
        """Wait until no script runs for the page."""
        self.page.wait_for_selector(
            "[data-testid=stApp][data-test-script-state=notRunning]", timeout=WAIT_MS, state="attached"
        )

    def press(self, role: str, name: str) -> None:
        """Click on the button, link or tab of that name."""
        self.page.get_by_role(role, name=name, exact=True).first.click(timeout=WAIT_MS)

    @property
    def exceptions(self) -> list[str]:
        """The text of every exception box."""
        return [box.inner_text() for box in self.page.query_selector_all("[data-testid=stException]")]

    @property
    def text(self) -> str:
        """All that can be read."""
        return self.page.inner_text("[data-testid=stMain]")

    @property
    def header(self) -> str:
        """The strip above every page."""
        return self.page.inner_text(".st-key-strip", timeout=WAIT_MS)

    @property
    def query(self) -> dict[str, str]:
        """What the address says behind its question mark."""
        return dict(parse_qsl(urlsplit(self.page.url).query))

    def metric(self, label: str) -> str:
        """The figure under this label."""
        title = self.page.locator("[data-testid=stMetricLabel]", has_text=re.compile(f"^{re.escape(label)}$"))
        card = self.page.locator("[data-testid=stMetric]", has=title)
        return card.locator("[data-testid=stMetricValue]").inner_text(timeout=WAIT_MS)

    def table(self, *first: str) -> list[Row]:
        """The rows in view of the table that begins with these columns, as a screen reader has them."""
        grids: list[list[list[str]]] = self.page.eval_on_selector_all("[data-testid=stDataFrame] table", TABLES)
        for names, *rows in grids:
            if tuple(names[: len(first)]) == first:
                return [dict(zip(names, row, strict=True)) for row in rows]
        raise AssertionError(f"no table begins with {first}: {[grid[0] for grid in grids]}")

    def choose_row(self, key: str) -> None:
        """Click on the first row's box in the table whose key begins so."""
        box = self.page.locator(f"[class*=st-key-{key}-] canvas").first.bounding_box()
        assert box is not None
        self.page.mouse.click(box["x"] + CHOICE_PIXELS, box["y"] + HEADER_PIXELS + ROW_PIXELS // 2)

    def input(self, label: str) -> "playwright.Locator":
        """The field with this label."""
        return self.page.locator(f"input[aria-label='{label}']")

    @property
    def scrolled(self) -> int:
        """How far down the page is scrolled, in pixels."""
        return int(self.page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollTop"))

    def scroll(self, pixels: int) -> None:
        """Scroll the page down so far."""
        self.page.evaluate("down => document.querySelector('[data-testid=stMain]').scrollTo(0, down)", pixels)

    def mark(self) -> int:
        """Remember the elements that stand on the page; how many they are."""
        return int(self.page.evaluate(MARK, MARKED))

    def replaced(self) -> list[str]:
        """Which of those are there no longer."""
        found: list[str] = self.page.evaluate(REPLACED)
        return found

    def has_table(self, *first: str) -> bool:
        """Whether that table is there and has a row."""
        try:
            return bool(self.table(*first))
        except AssertionError:
            return False

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Until something holds; fails with what is on the page."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not happen; the page says:\n{self.text}"
            self.page.wait_for_timeout(LOOK_MS)

    def assert_well(self) -> None:
        """Nothing went wrong on it so far, and nothing was asked of another host."""
        found = (self.exceptions, self.errors, self.complaints, self.outside)
        assert found == ([], [], [], []), found

    def _note_request(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.outside.append(url)
        if "/inspect/streams/" in url:
            self.streams.append(urlsplit(url).path)

    def _note_line(self, line: "playwright.ConsoleMessage") -> None:
        if line.type == "error" and not line.location["url"].endswith(PROBES):
            self.complaints.append(f"{line.text} ({line.location['url']})")


@contextlib.contextmanager
def browser() -> Iterator["playwright.Browser"]:
    """Chromium, ended at the end; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield found
        finally:
            found.close()


def view(found: "playwright.Browser", scheme: str = "light") -> View:
    """A fresh page in a window of its own."""
    return View(window(found, scheme).new_page())


def window(found: "playwright.Browser", scheme: str = "light") -> "playwright.BrowserContext":
    """What pages share: their size, their colours and what was fetched already."""
    return found.new_context(viewport=SIZE, color_scheme=scheme)


@contextlib.contextmanager
def tab(of: "playwright.BrowserContext") -> Iterator[View]:
    """A page of that window, closed at the end."""
    page = of.new_page()
    try:
        yield View(page)
    finally:
        page.close()
