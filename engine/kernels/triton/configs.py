"""How kernels are cut up on each card: tables kept in the repository, one file a compute capability."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_obs.engine.kernels.triton.launch import LaunchConfig

CAPABILITIES = (80, 90, 100)
"""Of the cards a table is kept for (A100; H100 and H200; B200); others take that of the nearest card below."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Configs:
    """One card's table: kernel name → shape class → configuration."""

    table: dict[str, dict[str, LaunchConfig]]

    def of(self, kernel: str, shape_class: str = "any") -> LaunchConfig:
        """That of a kernel for a class of shapes; the table's `any` where the class has none of its own."""
        classes = self.table[kernel]
        return classes.get(shape_class) or classes["any"]


@cache
def configs_for(capability: int) -> Configs:
    """The table for a compute capability (major * 10 + minor)."""
    known = [one for one in CAPABILITIES if one <= capability]
    return read_configs(_FOLDER / f"sm_{max(known, default=CAPABILITIES[0])}.json")


def read_configs(path: Path) -> Configs:
    """A table from its file: {kernel: {class: {"sizes": {...}, "num_warps": n, "num_stages": n}}}."""
    table = json.loads(path.read_text())
    return Configs(
        {
            kernel: {name: LaunchConfig(**entry) for name, entry in classes.items()}
            for kernel, classes in table.items()
        }
    )
