"""x-kubernetes-validations: one rule of a schema, compiled once and asked for every object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hub.sandbox.cel import CelError, EvaluationError, Program, UnsupportedError, compile_cel
from hub.sandbox.cel_functions import NONE, Optional
from hub.sandbox.errors import FieldError, forbidden_field, invalid_value, required


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`program` is None when the rule can not be asked; `fault` then says why."""

    text: str
    program: Program | None
    fault: str = ""
    message: str = ""
    message_program: Program | None = None
    reason: str = ""
    #: Below the field that has the rule, the one that is to blame: ".spec.x".
    field_path: str = ""
    #: `oldSelf` is an optional value, so the rule holds for new objects too.
    optional_old: bool = False

    @property
    def is_about_change(self) -> bool:
        """Does it compare with what was there before?"""
        return self.program is not None and "oldSelf" in self.program.variables


def read_rule(document: Mapping[str, Any]) -> Rule:
    program, fault = _compiled(document.get("rule", ""))
    return Rule(
        text=document.get("rule", "").strip(),
        program=program,
        fault=fault,
        message=document.get("message", "").strip(),
        message_program=_compiled(document.get("messageExpression", ""))[0],
        reason=document.get("reason", ""),
        field_path=document.get("fieldPath", ""),
        optional_old=bool(document.get("optionalOldSelf")),
    )


def _compiled(text: str) -> tuple[Program | None, str]:
    if not text.strip():
        return None, ""
    try:
        return compile_cel(text), ""
    except UnsupportedError as error:
        return None, str(error)
    except CelError as error:
        return None, f"compilation failed: {error}"


#: What stands for the value when a rule could not be evaluated.
_TYPES = {bool: "boolean", dict: "object", float: "number", int: "integer", list: "array", str: "string"}


def ask(rule: Rule, value: Any, old: Any, at: str) -> FieldError | None:
    """What is wrong with `value`, if anything. `old` is None when there was nothing comparable before."""
    if rule.program is None or (old is None and rule.is_about_change and not rule.optional_old):
        return None
    variables = {"self": value}
    if rule.optional_old:
        variables["oldSelf"] = NONE if old is None else Optional(True, old)
    elif rule.is_about_change:
        variables["oldSelf"] = old
    try:
        if rule.program.value(variables) is True:
            return None
    except EvaluationError as error:
        return invalid_value(
            at or "<nil>", _TYPES[type(value)], f"{error} evaluating rule: {rule.message or rule.text}"
        )
    return _broken(rule, variables, at)


def _broken(rule: Rule, variables: dict[str, Any], at: str) -> FieldError:
    detail = _message(rule, variables)
    field = f"{at}{rule.field_path}".lstrip(".") or "<nil>"
    match rule.reason:
        case "FieldValueForbidden":
            return forbidden_field(field, detail)
        case "FieldValueRequired":
            return required(field, detail)
        case "FieldValueDuplicate":
            return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {detail}")
        case _:
            return _invalid(field, variables["self"], detail)


def _message(rule: Rule, variables: dict[str, Any]) -> str:
    if rule.message_program is not None:
        try:
            text = rule.message_program.value(variables)
        except EvaluationError:
            text = ""
        if isinstance(text, str) and text.strip() and "\n" not in text.strip():
            return text.strip()
    return rule.message or f"failed rule: {rule.text}"


def _invalid(field: str, value: Any, detail: str) -> FieldError:
    """Objects and lists are not shown: they may be long."""
    if isinstance(value, dict | list):
        return FieldError(field, "FieldValueInvalid", f"Invalid value: {detail}")
    return invalid_value(field, value, detail)
