"""A drawn part of a page in the browser: its words, its frames, its pixels, and hands on it."""

from typing import Any

from browser import View

COLOURS = """canvas => {
  const { width, height } = canvas, image = canvas.getContext("2d").getImageData(0, 0, width, height);
  return [...new Set(new Uint32Array(image.data.buffer))];
}"""
DIGEST = """canvas => {
  const { width, height } = canvas, image = canvas.getContext("2d").getImageData(0, 0, width, height);
  return new Uint32Array(image.data.buffer).reduce((sum, each) => (Math.imul(sum, 31) + each) >>> 0, 7);
}"""
HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Canvas:
    """The component with this key on a page."""

    def __init__(self, view: View, key: str) -> None:
        self._view = view
        self._box = view.page.locator(f".st-key-{key} .canvas-box")
        self.picture = self._box.locator("canvas").first

    @property
    def words(self) -> str:
        """What a screen reader says of it, empty where it is not drawn yet."""
        if not self.picture.count():
            return ""
        return str(self.picture.get_attribute("aria-label"))

    @property
    def state(self) -> str:
        """The word in its corner."""
        return str(self._box.locator(".canvas-state").inner_text())

    @property
    def num_frames(self) -> int:
        """How often it was drawn so far."""
        return int(self._box.evaluate("box => (box.stream || box.map).frames.num"))

    @property
    def digest(self) -> int:
        """A number that is another one when a pixel is."""
        return int(self.picture.evaluate(DIGEST))

    @property
    def colours(self) -> list[int]:
        """The different pixels of it."""
        found: list[Any] = self.picture.evaluate(COLOURS)
        return found

    def click(self, across: float, down: float) -> None:
        """At these shares of its width and height."""
        box = self.picture.bounding_box()
        assert box is not None
        self._view.page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])

    def press(self, key: str) -> None:
        """A key while it has the focus."""
        self.picture.press(key)


def hide(view: View, is_hidden: bool) -> None:
    """Let the page believe that nobody sees it, or that somebody does again."""
    view.page.evaluate(HIDE, is_hidden)
