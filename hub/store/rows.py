"""Records to rows and back, by name: whatever a record calls a field is the column's name too."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import BigInteger, Boolean, Double, Table
from sqlalchemy.dialects.postgresql import JSONB

_CASTS = {BigInteger: "bigint", Double: "double precision", Boolean: "boolean"}


def changed(before: Struct, after: Struct) -> dict[str, Any]:
    """The fields of `after` that differ from `before`, which is a record of the same type."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return {name: value for name, value in new.items() if value != old[name]}


def assignments(table: Table, columns: Iterable[str], target: str, changes: str) -> str:
    """`SET` clause that writes what the jsonb `changes` has and leaves every other column as it is in the row `target`.

    Two writers who change different fields of one row so keep each other's work.
    """
    return ", ".join(
        f"{name} = CASE WHEN {changes} ? '{name}' THEN {_read(table, name, changes)} ELSE {target}.{name} END"
        for name in sorted(columns)
    )


def _read(table: Table, name: str, document: str) -> str:
    kind = type(table.c[name].type)
    if kind is JSONB:
        return f"NULLIF({document} -> '{name}', 'null')"
    text = f"{document} ->> '{name}'"
    return f"CAST({text} AS {_CASTS[kind]})" if kind in _CASTS else text
