"""`make conformance`: replay every vector and print a table by family. VECTORS=dir takes another folder.

The last line is JSON: {"matched": n, "total": n, "families": {family: [matched, total]}}.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.conformance.replay import differences
from tests.conformance.vectors import HERE, family_of, files, read


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--vectors", type=Path, default=HERE / "vectors", help="folder with *.jsonl or *.jsonl.xz")
    parser.add_argument("--family", default="", help="only this family")
    parser.add_argument("--name", default="", help="only this vector")
    parser.add_argument("--rules", choices=("kueue", "hub"), default="kueue", help="hub: with our own rules on")
    parser.add_argument(
        "--all-differences", action="store_true", help="print every vector that differs, not ten a family"
    )
    options = parser.parse_args()
    families: dict[str, list[int]] = {}
    print(f"{'family':<28}{'vectors':>9}{'matched':>9}{'share':>9}")
    for path in files(options.vectors):
        family = family_of(path)
        if options.family and options.family != family:
            continue
        wrong: list[str] = []
        total = 0
        for vector in read(path):
            if options.name and vector["name"] != options.name:
                continue
            total += 1
            try:
                found = differences(vector, options.rules)
            except Exception as error:  # noqa: BLE001 - one broken vector must not hide the others
                found = [f"{type(error).__name__}: {error}"]
            if found:
                wrong.append(f"  {vector['name']}: {found[0]}")
        families[family] = [total - len(wrong), total]
        print(f"{family:<28}{total:>9}{total - len(wrong):>9}{(total - len(wrong)) / max(total, 1):>9.1%}", flush=True)
        for line in wrong if options.all_differences else wrong[:10]:
            print(line[:2000])
    matched, total = (sum(f[i] for f in families.values()) for i in (0, 1))
    print(f"{'all':<28}{total:>9}{matched:>9}{matched / max(total, 1):>9.1%}")
    print(json.dumps({"matched": matched, "total": total, "families": families}))
    return 0 if matched == total else 1


if __name__ == "__main__":
    sys.exit(main())
