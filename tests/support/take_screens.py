"""Takes the pictures of docs/screens anew, over a running server and its dashboard.

python tests/support/take_screens.py http://127.0.0.1:8501
"""

import sys
from pathlib import Path

from browser import View, browser, view

from vllm_obs.dashboard.page_list import PAGES

SCREENS = Path(__file__).parents[2] / "docs" / "screens"
SETTLE_MS = 6000


def take(shown: View, address: str, name: str, scheme: str) -> None:
    """One page, whole height of the window."""
    shown.open(f"{address}/{name}")
    shown.page.wait_for_timeout(SETTLE_MS)
    shown.page.screenshot(path=SCREENS / f"{name}-{scheme}.png")


def main(address: str, names: list[str]) -> None:
    """All pages, or those named, in light and in dark."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    with browser() as found:
        for scheme in ("light", "dark"):
            shown = view(found, scheme)
            for name in names or [page.name for page in PAGES]:
                take(shown, address, name, scheme)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2:])
