"""Label and field selectors: text in, a predicate over objects out. Grammar: apimachinery's labels.Parse and fields.ParseSelector."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hub.sandbox.errors import ApiError, bad_request

Predicate = Callable[[dict[str, Any]], bool]
Requirement = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*$")
_COMPARE = re.compile(r"^\s*(?P<key>[^\s!=<>,()]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s=!<>,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!)?\s*(?P<key>[^\s!=<>,()]+)\s*$")


def _pieces(text: str) -> Iterable[str]:
    """Split at commas outside parentheses."""
    return (piece for piece in re.split(r",(?![^()]*\))", text))


def _set_requirement(key: str, op: str, values: frozenset[str]) -> Requirement:
    if op == "in":
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _compare_requirement(key: str, op: str, value: str) -> Requirement:
    if op == "!=":
        return lambda labels: labels.get(key) != value
    if op in ("=", "=="):
        return lambda labels: labels.get(key) == value
    if (limit := _number(value)) is None:
        raise bad_request(
            f"unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer: {value!r}"
        )
    if op == ">":
        return lambda labels: (n := _number(labels.get(key))) is not None and n > limit
    return lambda labels: (n := _number(labels.get(key))) is not None and n < limit


def _exists_requirement(key: str, absent: bool) -> Requirement:
    return (lambda labels: key not in labels) if absent else (lambda labels: key in labels)


def _label_requirement(piece: str, whole: str) -> Requirement:
    if found := _SET.match(piece):
        values = frozenset(v.strip() for v in found["values"].split(","))
        return _set_requirement(found["key"], found["op"], values)
    if found := _COMPARE.match(piece):
        return _compare_requirement(found["key"], found["op"], found["value"])
    if found := _EXISTS.match(piece):
        return _exists_requirement(found["key"], absent=bool(found["not"]))
    raise bad_request(f"unable to parse requirement: {piece.strip()!r} in label selector {whole!r}")


def parse_labels(text: str) -> Predicate | None:
    """Predicate of a `labelSelector` parameter; None when it selects everything. Raises ApiError 400."""
    if not text.strip():
        return None
    requirements = [_label_requirement(piece, text) for piece in _pieces(text)]

    def matches(obj: dict[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement(labels) for requirement in requirements)

    return matches


def _expression_requirement(expression: Mapping[str, Any]) -> Requirement:
    key, op = expression["key"], expression["operator"]
    values = frozenset(expression.get("values") or ())
    table: dict[str, Callable[[], Requirement]] = {
        "In": lambda: _set_requirement(key, "in", values),
        "NotIn": lambda: _set_requirement(key, "notin", values),
        "Exists": lambda: _exists_requirement(key, absent=False),
        "DoesNotExist": lambda: _exists_requirement(key, absent=True),
    }
    if op not in table:
        raise bad_request(f"{op!r} is not a valid label selector operator; use one of {', '.join(table)}")
    return table[op]()


def matches_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A metav1.LabelSelector against labels. None matches nothing, an empty selector everything."""
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression_requirement(e)(labels) for e in selector.get("matchExpressions") or ())


def selector_text(selector: Any) -> str:
    """A label selector, or a plain map of labels, as kubectl writes it."""
    if not isinstance(selector, dict):
        return ""
    plain = selector if all(isinstance(v, str) for v in selector.values()) else selector.get("matchLabels") or {}
    terms = [f"{key}={value}" for key, value in sorted(plain.items())]
    if plain is not selector:
        terms += [_expression_text(expression) for expression in selector.get("matchExpressions") or ()]
    return ",".join(terms)


def _expression_text(expression: Mapping[str, Any]) -> str:
    key, values = expression["key"], ",".join(expression.get("values") or ())
    table = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key, "DoesNotExist": f"!{key}"}
    return table[expression["operator"]]


def field_value(obj: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """The value at `path` as field selectors see it: text, "" when absent."""
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_fields(text: str, served: Mapping[str, tuple[str, ...]]) -> Predicate | None:
    """Predicate of a `fieldSelector` parameter; `served` maps each selectable field to its path. Raises ApiError 400."""
    terms = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not terms:
        return None
    checks = [_field_term(term, text, served) for term in terms]
    return lambda obj: all((field_value(obj, path) == value) is same for path, value, same in checks)


def _field_term(term: str, whole: str, served: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], str, bool]:
    found = re.fullmatch(r"(?P<field>[^=!]+?)\s*(?P<op>==|!=|=)\s*(?P<value>.*)", term)
    if found is None:
        raise bad_request(f"invalid selector: {term!r}; can't understand {whole!r}")
    if found["field"] not in served:
        raise ApiError(400, "BadRequest", f"field label not supported: {found['field']}")
    return served[found["field"]], found["value"], found["op"] != "!="


def named_only(text: str) -> str:
    """The name when a field selector is nothing but `metadata.name=NAME`, else "". Such lists are plain look-ups."""
    found = re.fullmatch(r"metadata\.name==?([^,=!]+)", text)
    return found[1] if found else ""
