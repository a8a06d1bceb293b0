"""All files for Prometheus and Grafana, made anew; `python -m vllm_obs.grafana.export` renews those here."""

from pathlib import Path

from vllm_obs.grafana.boards import documents, text_of
from vllm_obs.grafana.data_sources import provisioning
from vllm_obs.grafana.settings import DEFAULTS, BoardSettings

HOME = Path(__file__).parent
_AS_THEY_ARE = ("prometheus.yml", "compose.yml", "rules/*.yml", "alerts/*.yml")


def made_files(settings: BoardSettings = DEFAULTS) -> dict[str, str]:
    """The boards and what provisions them, by their paths."""
    boards = {f"dashboards/{name}": text_of(document) for name, document in documents(settings).items()}
    return boards | {f"provisioning/{name}": text for name, text in provisioning(settings).items()}


def exported_files(settings: BoardSettings = DEFAULTS) -> dict[str, str]:
    """These, and Prometheus's configuration, rules and alerts as they are. OSError where those cannot be read."""
    paths = sorted(path for pattern in _AS_THEY_ARE for path in HOME.glob(pattern))
    return {str(path.relative_to(HOME)): path.read_text() for path in paths} | made_files(settings)


def differing(directory: Path, files: dict[str, str]) -> list[str]:
    """Those that are there already with something else in them."""
    return [name for name, text in files.items() if _is_other(directory / name, text)]


def _is_other(path: Path, text: str) -> bool:
    if not path.exists() and not path.is_symlink():
        return False
    return not path.is_file() or path.read_bytes() != text.encode()


def write_files(directory: Path, files: dict[str, str]) -> None:
    """Write them all, with the directories they need. OSError."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write_files(HOME, made_files())
