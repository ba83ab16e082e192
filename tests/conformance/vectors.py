"""The vectors as they lie here: one JSON document a line, xz-compressed, one file per family."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Vector = dict[str, Any]


def files(folder: Path = HERE / "vectors") -> list[Path]:
    """Every file with vectors in the folder, compressed or not, in order of their names."""
    return sorted([*folder.glob("*.jsonl.xz"), *folder.glob("*.jsonl")])


def family_of(path: Path) -> str:
    return path.name.removesuffix(".xz").removesuffix(".jsonl")


def read(path: Path) -> Iterator[Vector]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)
