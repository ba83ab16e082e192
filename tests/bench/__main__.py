"""`python -m tests.bench` runs every bench, `python -m tests.bench NAME ...` some of them."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import fleet, placements, pods, sandbox, store

#: name -> a function that yields its figures, one dict each.
BENCHES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "fleet": fleet.figures,
    "placements": placements.figures,
    "pods": pods.figures,
    "sandbox": sandbox.figures,
    "store": store.figures,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in BENCHES]:
        print(f"no bench named {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    for name in names or BENCHES:
        for figure in BENCHES[name]():
            print(json.dumps({"bench": name, **figure}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
