"""CEL expressions: what rules of custom resources use of the language."""

import pytest

from hub.sandbox.cel import CelSyntaxError, EvaluationError, UnsupportedError, compile_cel

TAINT = {"key": "gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("expression", "self_value"),
    [
        pytest.param("1 + 2 * 3 == 7 && -7 / 2 == -3 && -7 % 3 == -1 && 7.0 / 2.0 == 3.5", None, id="arithmetic"),
        pytest.param("1 == 1.0 && 2 > 1.5 && 'b' > 'a' && !(true == 1)", None, id="numbers of two types compare"),
        pytest.param("'a\\n' + \"b\" + r'\\n' == 'a\\nb\\\\n' && '''x''' == 'x' && b'x' == b'x'", None, id="texts"),
        pytest.param("0x10 == 16 && 1u == 1 && 1e3 == 1000.0", None, id="numbers in all spellings"),
        pytest.param("[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && [1, 2][1] == 2 && {'a': 1}['a'] == 1", None, id="lists and maps"),
        pytest.param("has(self.a) && !has(self.b) && 'a' in self && self.a.x == 1", {"a": {"x": 1}}, id="fields"),
        pytest.param("self.all(t, t.effect in ['NoSchedule'])", [TAINT], id="all"),
        pytest.param("self.exists(t, has(t.key)) && self.exists_one(t, t.key == 'gpu')", [TAINT], id="exists"),
        pytest.param("self.filter(i, i > 1).map(i, i * 2) == [4, 6] && self.map(i, i > 2, i) == [3]", [1, 2, 3], id="filter and map"),
        pytest.param("size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0", ["a", "b"], id="no duplicates"),
        pytest.param("self.all(k, k.startsWith('a')) && self.all(k, v, v > 0)", {"a": 1, "ab": 2}, id="maps by key and value"),
        pytest.param("[has(self.a), has(self.b)].filter(x, x == true).size() == 1", {"a": 1}, id="exactly one of"),
        pytest.param("has(self.min) ? self.min <= self.max : true", {"max": 1}, id="a choice"),
        pytest.param("self.missing == 1 || true", {}, id="one side of || is enough"),
        pytest.param("!(self.missing == 1 && false)", {}, id="one side of && is enough"),
        pytest.param("self.exists(x, x.a == 1)", [{}, {"a": 1}], id="one sound item is enough for exists"),
        pytest.param("self.matches('^[a-z]+[0-9]$') && self.contains('b') && self.endsWith('1')", "ab1", id="matching texts"),
        pytest.param("self.split(',').join('-') == 'a-b' && self.indexOf(',') == 1 && self.substring(2) == 'b'", "a,b", id="taking texts apart"),
        pytest.param("self.lowerAscii() == 'ab' && self.trim().size() == 2 && 'x%s=%d'.format([self, 3]) == 'xAB=3'", "AB", id="making texts"),
        pytest.param("self.isSorted() && self.sum() == 6 && self.max() == 3 && self.indexOf(2) == 1", [1, 2, 3], id="list functions"),
        pytest.param("sets.contains(self, ['a']) && sets.intersects(self, ['b', 'z']) && !sets.equivalent(self, ['a'])", ["a", "b"], id="sets"),
        pytest.param("quantity(self).isGreaterThan(quantity('900m')) && quantity(self).compareTo(quantity('1000m')) == 0", "1", id="quantities compare"),
        pytest.param("isQuantity(self) && !isQuantity('x') && quantity(self).add(1).sub(quantity('1')).asInteger() == 2147483648", "2Gi", id="quantities add up"),
        pytest.param("duration(self) > duration('59m') && duration('1h30m').getMinutes() == 90", "1h", id="durations"),
        pytest.param("self > timestamp('2020-01-01T00:00:00Z') && timestamp(self).getFullYear() == 2024", "2024-05-01T00:00:00Z", id="a text beside a time is a time"),
        pytest.param("self.?a.orValue(3) == 3 && self.?b.?c.hasValue() && optional.of(1).value() == 1", {"b": {"c": 1}}, id="optional values"),
        pytest.param("cel.bind(x, self.a, x + x == 4) && type(self.a) == int && type(self) == map", {"a": 2}, id="bind and type"),
        pytest.param("self.__namespace__ == 1 && self.a__dash__b == 2 && self.x__slash__y == 3 && self.__underscores__z == 4", {"namespace": 1, "a-b": 2, "x/y": 3, "__z": 4}, id="escaped field names"),
        pytest.param("string(3) == '3' && int('3') == 3 && double('1.5') == 1.5 && string(true) == 'true'", None, id="conversions"),
    ],
)  # fmt: skip
def test_holds(expression, self_value):
    assert compile_cel(expression).value({"self": self_value}) is True


@pytest.mark.parametrize(
    ("expression", "want_message"),
    [
        pytest.param("self.b == 1", "no such key: b", id="a missing field"),
        pytest.param("[1][3] == 1", "index out of bounds: 3", id="an index out of range"),
        pytest.param("self.a + 'x' == ''", "no such overload", id="operands that do not go together"),
        pytest.param("1 / 0 == 1", "division by zero", id="a division by zero"),
        pytest.param("self.b || self.c", "no such key: c", id="|| with two faults"),
        pytest.param("oldSelf == self", "undeclared reference to 'oldSelf'", id="an unknown variable"),
        pytest.param("self.a ? true : false", "is not a bool", id="a condition that is no bool"),
    ],
)
def test_has_no_value(expression, want_message):
    with pytest.raises(EvaluationError, match=want_message):
        compile_cel(expression).value({"self": {"a": 1}})


@pytest.mark.parametrize("expression", ["self ==", "(1", "has(self)", "self @ 1", "'open", "1 2", "a ? b"])
def test_is_no_expression(expression):
    with pytest.raises(CelSyntaxError, match="Syntax error"):
        compile_cel(expression)


def test_what_is_not_there_says_so_when_it_is_compiled():
    with pytest.raises(UnsupportedError, match="'isIP' is not evaluated here"):
        compile_cel("isIP(self)")


def test_variables_are_those_that_no_macro_binds():
    program = compile_cel("self.all(x, x == oldSelf.y && type(x) == int) && optional.of(z).hasValue()")
    assert program.variables == {"self", "oldSelf", "z"}
