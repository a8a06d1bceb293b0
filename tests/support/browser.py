"""A real Chromium for the tests of pages, and what went wrong in it."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator

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


class View:
    """One page in the browser, and the errors of its scripts."""

    def __init__(self, page: "playwright.Page") -> None:
        self.page = page
        self.errors: list[str] = []
        self.outside: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url))

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

    @property
    def exceptions(self) -> list[str]:
        """The text of every exception box."""
        return [box.inner_text() for box in self.page.query_selector_all("[data-testid=stException]")]

    @property
    def text(self) -> str:
        """All that can be read."""
        return self.page.inner_text("[data-testid=stMain]")

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Until something holds; fails with what is on the page."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not happen; the page says:\n{self.text}"
            self.page.wait_for_timeout(100)

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.outside.append(url)


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
    """A fresh page."""
    context = found.new_context(viewport=SIZE, color_scheme=scheme)
    return View(context.new_page())
