"""LateModule: a package that is imported when a test first uses it, not by everybody who collects the tests."""

from importlib import import_module
from typing import Any


class LateModule:
    """Has the public attributes of the module with that name; whoever collects tests asks for others."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def module(self) -> Any:
        """The module itself."""
        return import_module(self._name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(self.module, attribute)
