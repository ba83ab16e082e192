"""The Common Expression Language, as far as rules of CustomResourceDefinitions use it, compiled to Python functions.

    text ──tokens──▶ _Parser ──tree──▶ _Compiler ──▶ Program: variables in, value out

Why not a library: the binding to the Rust implementation copies its variables into CEL values for every evaluation,
which takes 1.6 ms for a Workload and one rule; here a rule reads the object in place and takes microseconds. There is
no type checker: what cel-go refuses when a rule is compiled shows here as an error when it is evaluated.

Not there: protobuf messages, and the url, ip, cidr, named format and sem-ver functions of Kubernetes. A rule that uses them
raises `UnsupportedError` when it is compiled, so that whoever wants it checked learns that it is not.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.sandbox.cel_functions import FUNCTIONS, NAMESPACES, TYPES, MissingError, add, equal, index, less, select

Env = Mapping[str, Any]
Code = Callable[[Env], Any]


class CelError(Exception):
    """Base of what goes wrong with an expression."""


class CelSyntaxError(CelError):
    """The text is no expression; the message says where."""


class UnsupportedError(CelError):
    """A function or construct that is not there."""


class EvaluationError(CelError):
    """No value: a missing key, operands that do not go together, a division by zero, ..."""


@dataclass(frozen=True, slots=True)
class Program:
    source: str
    #: Names that are not bound by a macro.
    variables: frozenset[str]
    code: Code

    def value(self, variables: Env) -> Any:
        """The value of the expression. Raises EvaluationError."""
        return _guarded(self.code, variables)


def compile_cel(source: str) -> Program:
    """Raises CelSyntaxError or UnsupportedError."""
    tree = _Parser(source).parse()
    compiler = _Compiler()
    return Program(source, frozenset(compiler.free(tree, frozenset())), compiler.compile(tree))


#: What Python raises when operands do not go together; all of it means "no value" here.
_FAULTS = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)


def _guarded(code: Code, env: Env) -> Any:
    try:
        return code(env)
    except MissingError as error:
        raise EvaluationError(str(error)) from None
    except _FAULTS as error:
        raise EvaluationError(f"no such overload: {error}") from error


# --- text to tree ----------------------------------------------------------------------------------------------------------

_TOKENS = re.compile(
    r"""\s+|//[^\n]*
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<text>[bBrR]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<op>\|\||&&|[<>=!]=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
_BINARY = ({"||"}, {"&&"}, {"<", "<=", ">", ">=", "==", "!=", "in"}, {"+", "-"}, {"*", "/", "%"})

#: (word, parts...): "value", "name", "select", "index", "call", "list", "map", or an operator.
Tree = tuple[Any, ...]


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(self._split(source))
        self._at = 0

    def _split(self, source: str) -> list[tuple[str, str]]:
        found, place = [], 0
        while place < len(source):
            match = _TOKENS.match(source, place)
            if match is None:
                raise CelSyntaxError(
                    f"Syntax error: token recognition error at column {place}: {source[place:][:20]!r}"
                )
            if match.lastgroup:
                found.append((match.lastgroup, match[0]))
            place = match.end()
        return [*found, ("end", "")]

    def parse(self) -> Tree:
        tree = self._expression()
        if self._tokens[self._at][0] != "end":
            raise self._unexpected()
        return tree

    def _unexpected(self) -> CelSyntaxError:
        text = self._tokens[self._at][1] or "<end of input>"
        return CelSyntaxError(f"Syntax error: unexpected {text!r} in {self._source!r}")

    def _take(self, *texts: str) -> str:
        """The operator, when it is next; "" when it is not."""
        kind, text = self._tokens[self._at]
        if text in texts and (kind == "op" or text == "in"):
            self._at += 1
            return text
        return ""

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected()

    def _expression(self) -> Tree:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self._binary(0)
        self._expect(":")
        return ("?:", condition, yes, self._expression())

    def _binary(self, level: int) -> Tree:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while op := self._take(*_BINARY[level]):
            left = (op, left, self._binary(level + 1))
        return left

    def _unary(self) -> Tree:
        if self._take("!"):
            return ("!", self._unary())
        if self._take("-"):
            return ("neg", self._unary())
        return self._member()

    def _member(self) -> Tree:
        tree = self._primary()
        while op := self._take(".", ".?", "[", "[?"):
            if op in ("[", "[?"):
                tree = ("index" if op == "[" else "index?", tree, self._expression())
                self._expect("]")
                continue
            name = self._name()
            if op == ".?":
                tree = ("select?", tree, name)
            elif self._take("("):
                tree = ("call", name, tree, *self._arguments(")"))
            else:
                tree = ("select", tree, name)
        return tree

    def _name(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "name":
            raise self._unexpected()
        self._at += 1
        return text

    def _arguments(self, end: str) -> list[Tree]:
        found: list[Tree] = []
        while not self._take(end):
            found.append(self._expression())
            if not self._take(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> Tree:
        kind, text = self._tokens[self._at]
        if self._take("("):
            tree = self._expression()
            self._expect(")")
            return tree
        if self._take("["):
            return ("list", *self._arguments("]"))
        if self._take("{"):
            return ("map", *self._entries())
        if kind in ("int", "float", "text"):
            self._at += 1
            return ("value", _literal(kind, text))
        name = self._name()
        if name in _LITERALS:
            return ("value", _LITERALS[name])
        return ("call", name, None, *self._arguments(")")) if self._take("(") else ("name", name)

    def _entries(self) -> list[Tree]:
        found: list[Tree] = []
        while not self._take("}"):
            found.append(self._expression())
            self._expect(":")
            found.append(self._expression())
            if not self._take(","):
                self._expect("}")
                break
        return found


def _literal(kind: str, text: str) -> Any:
    if kind == "float":
        return float(text)
    if kind == "int":
        return int(text.rstrip("uU"), 0 if text[:2] in ("0x", "0X") else 10)
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise CelSyntaxError(f"Syntax error: {text} is not a text: {error}") from None


# --- tree to functions -----------------------------------------------------------------------------------------------------

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda a, b: not equal(a, b),
    "<": less,
    ">": lambda a, b: less(b, a),
    "<=": lambda a, b: less(a, b) or equal(a, b),
    ">=": lambda a, b: less(b, a) or equal(a, b),
    "in": lambda a, b: a in b if isinstance(b, dict) else any(equal(a, x) for x in b),
    "+": add,
    "-": FUNCTIONS["_-_"],
    "*": FUNCTIONS["_*_"],
    "/": FUNCTIONS["_/_"],
    "%": FUNCTIONS["_%_"],
}
#: Macro -> how many names it binds at least and at most, and how many expressions follow.
_MACROS = {"all": (1, 2, 1), "exists": (1, 2, 1), "exists_one": (1, 2, 1), "existsOne": (1, 2, 1), "filter": (1, 1, 1)}


class _Compiler:
    def compile(self, tree: Tree) -> Code:
        word, *parts = tree
        method = getattr(self, f"_{_METHODS.get(word, '')}", None)
        if method is not None:
            return method(*parts)
        left, right, apply = self.compile(parts[0]), self.compile(parts[1]), _ARITHMETIC[word]
        return lambda env: apply(left(env), right(env))

    def free(self, tree: Tree, bound: frozenset[str]) -> set[str]:
        """Variables of the tree, apart from those in `bound`."""
        if tree[0] == "name":
            return set() if tree[1] in bound or tree[1] in TYPES or tree[1] in NAMESPACES else {tree[1]}
        inner = (
            bound | {p[1] for p in tree[3:] if p[0] == "name"} if tree[0] == "call" and tree[1] in _BINDERS else bound
        )
        return {name for part in tree[1:] if isinstance(part, tuple) and part for name in self.free(part, inner)}

    def _value(self, value: Any) -> Code:
        return lambda _env: value

    def _variable(self, name: str) -> Code:
        if name in TYPES:
            return self._value(TYPES[name])

        def look_up(env: Env) -> Any:
            if name not in env:
                raise MissingError(f"undeclared reference to '{name}'")
            return env[name]

        return look_up

    def _select(self, target: Tree, name: str) -> Code:
        of, field = self.compile(target), _unescaped(name)
        return lambda env: select(of(env), field)

    def _select_optional(self, target: Tree, name: str) -> Code:
        of, field = self.compile(target), _unescaped(name)
        return lambda env: FUNCTIONS["optional.select"](of(env), field)

    def _index(self, target: Tree, key: Tree) -> Code:
        of, at = self.compile(target), self.compile(key)
        return lambda env: index(of(env), at(env))

    def _index_optional(self, target: Tree, key: Tree) -> Code:
        of, at = self.compile(target), self.compile(key)
        return lambda env: FUNCTIONS["optional.select"](of(env), at(env))

    def _list(self, *items: Tree) -> Code:
        codes = [self.compile(item) for item in items]
        return lambda env: [code(env) for code in codes]

    def _map(self, *entries: Tree) -> Code:
        codes = [self.compile(entry) for entry in entries]
        pairs = list(zip(codes[::2], codes[1::2], strict=True))
        return lambda env: {key(env): value(env) for key, value in pairs}

    def _not(self, operand: Tree) -> Code:
        code = self.compile(operand)
        return lambda env: not _bool(code(env))

    def _negative(self, operand: Tree) -> Code:
        code = self.compile(operand)
        return lambda env: -code(env)

    def _choice(self, condition: Tree, yes: Tree, no: Tree) -> Code:
        test, then, otherwise = self.compile(condition), self.compile(yes), self.compile(no)
        return lambda env: then(env) if _bool(test(env)) else otherwise(env)

    def _or(self, left: Tree, right: Tree) -> Code:
        return _decided_by(True, self.compile(left), self.compile(right))

    def _and(self, left: Tree, right: Tree) -> Code:
        return _decided_by(False, self.compile(left), self.compile(right))

    def _call(self, name: str, target: Tree | None, *arguments: Tree) -> Code:
        if name == "has" and target is None:
            return self._has(*arguments)
        if target is not None and name in _BINDERS and (macro := self._macro(name, target, arguments)):
            return macro
        if target is not None and target[0] == "name" and target[1] in NAMESPACES:
            name, target = f"{target[1]}.{name}", None
        function = FUNCTIONS.get(name)
        if function is None:
            raise UnsupportedError(f"the function {name!r} is not evaluated here")
        codes = [self.compile(a) for a in ([target] if target is not None else []) + list(arguments)]
        return lambda env: function(*(code(env) for code in codes))

    def _has(self, *arguments: Tree) -> Code:
        if len(arguments) != 1 or arguments[0][0] != "select":
            raise CelSyntaxError("Syntax error: invalid argument to has() macro")
        of, field = self.compile(arguments[0][1]), _unescaped(arguments[0][2])

        def has(env: Env) -> bool:
            value = of(env)
            if not isinstance(value, dict):
                raise TypeError("has() needs an object")
            return field in value

        return has

    def _macro(self, name: str, target: Tree, arguments: Sequence[Tree]) -> Code | None:
        if name == "bind":
            return self._bind(target, arguments)
        names = [a[1] for a in arguments[:-1] if a[0] == "name"]
        if name == "map" and len(arguments) in (2, 3) and arguments[0][0] == "name":
            test = self.compile(arguments[1]) if len(arguments) == 3 else None
            return _mapped(self.compile(target), arguments[0][1], test, self.compile(arguments[-1]))
        if name not in _MACROS or not _MACROS[name][0] <= len(names) <= _MACROS[name][1]:
            return None
        if len(arguments) != len(names) + 1:
            return None
        return _FOLDS[name](self.compile(target), tuple(names), self.compile(arguments[-1]))

    def _bind(self, target: Tree, arguments: Sequence[Tree]) -> Code | None:
        if target != ("name", "cel") or len(arguments) != 3 or arguments[0][0] != "name":
            return None
        name, value, body = arguments[0][1], self.compile(arguments[1]), self.compile(arguments[2])
        return lambda env: body({**env, name: value(env)})


_BINDERS = {*_MACROS, "map", "bind"}
_METHODS = {
    "value": "value",
    "name": "variable",
    "select": "select",
    "select?": "select_optional",
    "index": "index",
    "index?": "index_optional",
    "list": "list",
    "map": "map",
    "call": "call",
    "!": "not",
    "neg": "negative",
    "?:": "choice",
    "||": "or",
    "&&": "and",
}
_ESCAPES = {"__dot__": ".", "__dash__": "-", "__slash__": "/", "__underscores__": "__"}
_ESCAPED = re.compile(r"__(?:dot|dash|slash|underscores)__")
_KEYWORD = re.compile(r"__([a-z]+)__")


def _unescaped(name: str) -> str:
    """The field that a rule means: `__namespace__` is namespace, `a__dash__b` is a-b (Kubernetes' escaping)."""
    if "__" not in name:
        return name
    if (keyword := _KEYWORD.fullmatch(name)) and keyword[0] not in _ESCAPES:
        return keyword[1]
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], name)


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise TypeError(f"{value!r} is not a bool")


def _decided_by(decisive: bool, left: Code, right: Code) -> Code:
    """|| and &&: either side may decide, and then an error on the other side does not matter."""

    def run(env: Env) -> bool:
        try:
            if _bool(left(env)) is decisive:
                return decisive
        except (MissingError, *_FAULTS):
            if _bool(right(env)) is decisive:
                return decisive
            raise
        return _bool(right(env))

    return run


# --- macros ----------------------------------------------------------------------------------------------------------------


def _bindings(value: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """What each round binds: the item; of a map the key; with two names also the index or the key in front."""
    if isinstance(value, dict):
        return [(key, item)[: len(names)] for key, item in value.items()]
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list or map")
    return [(item,) for item in value] if len(names) == 1 else list(enumerate(value))


def _rounds(target: Code, names: tuple[str, ...], body: Code, env: Env) -> list[tuple[tuple[Any, ...], Any]]:
    """(binding, value or the exception) of each round."""
    inner = dict(env)
    found = []
    for binding in _bindings(target(env), names):
        inner.update(zip(names, binding, strict=True))
        try:
            found.append((binding, _bool(body(inner))))
        except (MissingError, *_FAULTS) as error:
            found.append((binding, error))
    return found


def _fold(decisive: bool) -> Callable[[Code, tuple[str, ...], Code], Code]:
    """All() and exists(): one decisive item is enough, whatever goes wrong with the others."""

    def build(target: Code, names: tuple[str, ...], body: Code) -> Code:
        def run(env: Env) -> bool:
            inner = dict(env)
            fault: Exception | None = None
            for binding in _bindings(target(env), names):
                inner.update(zip(names, binding, strict=True))
                try:
                    if _bool(body(inner)) is decisive:
                        return decisive
                except (MissingError, *_FAULTS) as error:
                    fault = error
            if fault is not None:
                raise fault
            return not decisive

        return run

    return build


def _exactly_one(target: Code, names: tuple[str, ...], body: Code) -> Code:
    return lambda env: sum(_sound(value) for _, value in _rounds(target, names, body, env)) == 1


def _filtered(target: Code, names: tuple[str, ...], body: Code) -> Code:
    return lambda env: [binding[0] for binding, value in _rounds(target, names, body, env) if _sound(value)]


def _sound(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def _mapped(target: Code, name: str, test: Code | None, body: Code) -> Code:
    def run(env: Env) -> list[Any]:
        inner = dict(env)
        found = []
        for (item,) in _bindings(target(env), (name,)):
            inner[name] = item
            if test is None or _bool(test(inner)):
                found.append(body(inner))
        return found

    return run


_FOLDS: dict[str, Callable[[Code, tuple[str, ...], Code], Code]] = {
    "all": _fold(False),
    "exists": _fold(True),
    "exists_one": _exactly_one,
    "existsOne": _exactly_one,
    "filter": _filtered,
}
