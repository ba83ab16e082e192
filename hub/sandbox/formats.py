"""String formats of OpenAPI that a custom resource may ask for, as kube-apiserver checks them. Others are not checked."""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime

#: What is said about a text that is no quantity, everywhere in the same words.
QUANTITY_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

_HEX = "[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-?{_HEX}{{4}}-?%s{_HEX}{{3}}-?%s{_HEX}{{3}}-?{_HEX}{{12}}"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

_PATTERNS = {
    "uuid": _UUID % (_HEX, _HEX),
    "uuid3": _UUID % ("3", _HEX),
    "uuid4": _UUID % ("4", "[89abAB]"),
    "uuid5": _UUID % ("5", "[89abAB]"),
    "hostname": r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?|([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}",
    "mac": rf"{_HEX}{{2}}([:-]{_HEX}{{2}}){{5}}|{_HEX}{{2}}([:-]{_HEX}{{2}}){{7}}|{_HEX}{{4}}(\.{_HEX}{{4}}){{2,3}}",
    "email": r"[^@\s]+@[^@\s]+",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s]*|/[^\s]*",
    "hexcolor": rf"#?({_HEX}{{3}}|{_HEX}{{6}})",
    "rgbcolor": r"rgb\(\s*\d{1,3}\s*(,\s*\d{1,3}\s*){2}\)",
    "bsonobjectid": rf"{_HEX}{{24}}",
    "ssn": r"\d{3}[- ]?\d{2}[- ]?\d{4}",
    "isbn10": r"(\d[- ]?){9}[\dXx]",
    "isbn13": r"(\d[- ]?){12}\d",
    "isbn": r"(\d[- ]?){9}[\dXx]|(\d[- ]?){12}\d",
    "duration": r"-?(\d+(\.\d+)?\s*(ns|us|µs|ms|s|m|h|d|w|nanoseconds?|microseconds?|milliseconds?|seconds?|minutes?|hours?|days?|weeks?)\s*)+|0",
    "k8sshortname": _LABEL,
    "k8slongname": r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    "datetime": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in _PATTERNS.items()}


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _is_date_time(text: str) -> bool:
    return bool(_COMPILED["datetime"].fullmatch(text)) and _parses(datetime.fromisoformat)(text.upper())


_CHECKS: dict[str, Callable[[str], bool]] = {
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "cidr": lambda text: "/" in text and _parses(lambda t: ipaddress.ip_network(t, strict=False))(text),
    "date": lambda text: len(text) == 10 and _parses(date.fromisoformat)(text),
    "datetime": _is_date_time,
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
}


def format_check(name: str) -> Callable[[str], bool] | None:
    """The check for strings of that format; None for one that is not checked."""
    name = name.replace("-", "")
    if (check := _CHECKS.get(name)) is not None:
        return check
    if (pattern := _COMPILED.get(name)) is not None:
        return lambda text: pattern.fullmatch(text) is not None
    return None
