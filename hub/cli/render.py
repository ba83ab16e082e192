"""Pure: what the hub answered -> what a person or a script reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], Any]
    wide: bool = False
    right: bool = False


def field(name: str, default: str = "") -> Callable[[Row], Any]:
    return lambda row: row.get(name) if row.get(name) not in (None, "") else default


def table(rows: Sequence[Row], columns: Sequence[Column], *, wide: bool = False, headers: bool = True) -> str:
    """Aligned columns, two spaces between them, as kubectl prints them. Numbers stand to the right."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[str(column.cell(row)) for column in shown] for row in rows]
    lines = [[column.title for column in shown], *cells] if headers else cells
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(shown))]
    return "\n".join(_line(line, shown, widths) for line in lines)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (c.rjust(w) if column.right else c.ljust(w) for c, column, w in zip(cells, columns, widths, strict=True))
    return "   ".join(padded).rstrip()


def document(value: Any, form: str) -> str:
    if form == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip()


def seconds(value: float | None) -> str:
    """An age as kubectl writes it: 5s, 3m20s, 5m, 2h, 4d."""
    if value is None:
        return "-"
    whole = max(0, int(value))
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"


def age(name: str, now: float) -> Callable[[Row], str]:
    """How long ago the RFC 3339 time in this field was."""

    def cell(row: Row) -> str:
        when = row.get(name)
        return seconds(now - datetime.fromisoformat(when).timestamp()) if when else "-"

    return cell


def amount(resource: str, value: int | None) -> str:
    """Engine units as people read them: 2500 of cpu is 2500m, bytes have a suffix."""
    if value is None:
        return "-"
    if resource == "cpu":
        return f"{value}m" if value % 1000 else str(value // 1000)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return _bytes(value)
    return str(value)


def _bytes(value: int) -> str:
    size = float(value)
    for suffix in ("", "Ki", "Mi", "Gi"):
        if abs(size) < 1024:
            return f"{size:.0f}{suffix}"
        size /= 1024
    return f"{size:.1f}Ti"


def clusters(now: float) -> list[Column]:
    return [
        Column("NAME", field("name")),
        Column("STATE", field("state")),
        Column("GPUS", lambda row: _gpus(row, "capacity"), right=True),
        Column("USED", lambda row: _gpus(row, "used"), right=True),
        Column("FREE", lambda row: _gpus(row, "free"), right=True),
        Column("LARGEST HOLE", lambda row: _gpus(row, "largestHole"), right=True),
        Column("NODES", lambda row: f"{row.get('nodesReady', 0)}/{row.get('nodes', 0)}", right=True),
        Column("WORKLOADS", field("placements", "0"), right=True),
        Column("DATA AGE", _data_age),
        Column("AGE", age("createdAt", now)),
        Column("VERSION", field("kubernetesVersion", "-"), wide=True),
        Column("ADDRESS", field("address", "-"), wide=True),
        Column("REASON", lambda row: row.get("message") or row.get("reason") or "-", wide=True),
    ]


def _gpus(row: Row, what: str) -> Any:
    value = (row.get("gpus") or {}).get(what)
    return "-" if value is None else value


def _data_age(row: Row) -> str:
    text = seconds(row.get("ageS"))
    return f"{text} (stale)" if row.get("stale") and row.get("ageS") is not None else text


CAPACITY = [
    Column("CLUSTER", field("cluster")),
    Column("FLAVOR", field("flavor")),
    Column("RESOURCE", field("resource")),
    Column("CAPACITY", lambda r: amount(r["resource"], r["capacity"]), right=True),
    Column("OURS", lambda r: amount(r["resource"], r["ours"]), right=True),
    Column("OTHERS", lambda r: amount(r["resource"], r["others"]), right=True),
    Column("ASSUMED", lambda r: amount(r["resource"], r["assumed"]), right=True),
    Column("FREE", lambda r: amount(r["resource"], r["free"]), right=True),
    Column("LARGEST HOLE", lambda r: amount(r["resource"], r.get("largestHole")), right=True),
    Column("NODES", lambda r: f"{r.get('nodesReady', 0)}/{r.get('nodes', 0)}", right=True, wide=True),
    Column("DATA AGE", _data_age),
    Column("STATE", field("state"), wide=True),
]


def queues(now: float) -> list[Column]:
    return [
        Column("KIND", field("kind")),
        Column("NAMESPACE", field("namespace", "-")),
        Column("NAME", field("name")),
        Column("COHORT/QUEUE", lambda r: r.get("cohort") or r.get("clusterQueue") or "-"),
        Column("PENDING", field("pending", "0"), right=True),
        Column("ADMITTED", field("admitted", "0"), right=True),
        Column("GPUS USED/NOMINAL", _queue_gpus),
        Column("ACTIVE", lambda r: "yes" if r.get("active") else f"no ({r.get('reason') or 'unknown'})"),
        Column("UPDATED", age("updatedAt", now), wide=True),
    ]


def _queue_gpus(row: Row) -> str:
    parts = []
    for flavor, resources in sorted((row.get("usage") or {}).items()):
        parts += [f"{flavor} {_of_nominal(amounts)}" for name, amounts in resources.items() if name.endswith("/gpu")]
    return ", ".join(parts) or "-"


def _of_nominal(amounts: Mapping[str, int]) -> str:
    """A LocalQueue has no quota of its own."""
    nominal = amounts.get("nominal", 0)
    return f"{amounts.get('reserved', 0)}/{nominal}" if nominal else str(amounts.get("reserved", 0))


def workloads(now: float) -> list[Column]:
    return [
        Column("NAMESPACE", field("namespace")),
        Column("NAME", lambda r: r.get("jobName") or r["name"]),
        Column("QUEUE", field("localQueue", "-")),
        Column("GPUS", field("gpus", "0"), right=True),
        Column("PRIORITY", field("priority", "0"), right=True),
        Column("STATE", field("state")),
        Column("CLUSTER", field("cluster", "-")),
        Column("AGE", age("createdAt", now)),
        Column("WHY", _short),
        Column("POSITION", field("position", "-"), wide=True, right=True),
        Column("WORKLOAD", field("name"), wide=True),
    ]


def _short(row: Row) -> str:
    reason, message = row.get("reason") or "", row.get("message") or ""
    text = f"{reason}: {message}" if reason and message else reason or message or "-"
    return text if len(text) <= 70 else text[:67] + "..."


def history(now: float) -> list[Column]:
    return [
        Column("SEQ", field("seq"), right=True),
        Column("AGE", age("at", now)),
        Column("CLUSTER", field("cluster", "-")),
        Column("GENERATION", field("generation", "-"), right=True),
        Column("REASON", field("reason")),
        Column("MESSAGE", field("message")),
    ]


def why(answer: Mapping[str, Any]) -> str:
    """One sentence first, then the clusters that were considered and the verdict on each."""
    lines = [answer["sentence"]]
    if answer.get("position") is not None:
        lines.append(f"Position in its queue: {answer['position']}")
    decision = answer.get("decision")
    if decision:
        lines += ["", f"Clusters considered {decision['at']}:"]
        rows = [{**c, "reasons": "; ".join(c.get("reasons") or [])} for c in decision["clusters"]]
        lines.append(
            table(
                rows,
                [
                    Column("  CLUSTER", lambda r: f"  {r['cluster']}"),
                    Column("VERDICT", field("verdict")),
                    Column("SCORE", lambda r: "-" if r.get("score") is None else f"{r['score']:.2f}", right=True),
                    Column("BECAUSE", field("reasons", "-")),
                ],
            )
        )
    return "\n".join(lines)


def applied(result: Mapping[str, Any]) -> list[str]:
    """One line per document, as kubectl apply says it, and its warnings below."""
    name = f"{(result.get('kind') or 'document').lower()}/{result.get('name') or result['index'] + 1}"
    where = f" in namespace {result['namespace']}" if result.get("namespace") else ""
    lines = [f"{name}{where} {result['result']}"]
    lines += [f"  warning: {warning}" for warning in result.get("warnings") or []]
    lines += [f"  {wrong.get('field') or 'document'}: {wrong['message']}" for wrong in result.get("errors") or []]
    return lines
