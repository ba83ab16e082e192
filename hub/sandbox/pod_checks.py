"""What kube-apiserver refuses in a pod spec, as field errors in its words; at the path where the spec stands."""

from collections.abc import Iterator
from typing import Any

from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, duplicate, forbidden_field, invalid_value, not_supported, required
from hub.sandbox.metadata import key_errors, label_errors, short_name_errors, value_errors
from hub.sandbox.resources import resource_errors

RESTART_POLICIES = ("Always", "OnFailure", "Never")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
INT32_MAX = 2**31 - 1

#: Field of a pod spec, of a container or of a constraint -> what it may say.
_WORDS = {
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "protocol": ("SCTP", "TCP", "UDP"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
}


def validate_pod_spec(spec: Document, path: str, restart: tuple[str, ...] = RESTART_POLICIES) -> list[FieldError]:
    """Field errors of a defaulted pod spec at `path`; `restart` lists the restart policies that this kind allows."""
    wrong = list(_volume_errors(spec.get("volumes") or (), f"{path}.volumes"))
    wrong += _all_container_errors(spec, path)
    wrong += _steering_errors(spec, path)
    wrong += _word_error(spec, "dnsPolicy", path)
    if (policy := spec.get("restartPolicy")) not in restart:
        wrong.append(not_supported(f"{path}.restartPolicy", policy, restart))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= INT32_MAX:
        why = f"must be between 1 and {INT32_MAX}, inclusive"
        wrong.append(invalid_value(f"{path}.activeDeadlineSeconds", deadline, why))
    return wrong


def template_errors(template: Document, path: str, restart: tuple[str, ...] = RESTART_POLICIES) -> list[FieldError]:
    """Field errors of a pod template at `path`."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    spec = template.get("spec") or {}
    return [*label_errors(labels, f"{path}.labels"), *validate_pod_spec(spec, f"{path}.spec", restart)]


def _word_error(holder: Document, name: str, path: str) -> list[FieldError]:
    if (value := holder.get(name)) is None or value in _WORDS[name]:
        return []
    return [not_supported(f"{path}.{name}", value, _WORDS[name])]


# --- volumes and containers ------------------------------------------------------------------------------------------------


def _volume_errors(volumes: Any, path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        at, name = f"{path}[{index}]", volume.get("name", "")
        yield from short_name_errors(name, f"{at}.name")
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        for extra in [kind for kind in volume if kind != "name"][1:]:
            yield forbidden_field(f"{at}.{extra}", "may not specify more than 1 volume type")


def _all_container_errors(spec: Document, path: str) -> Iterator[FieldError]:
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    seen: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            at, name = f"{path}.{group}[{index}]", container.get("name", "")
            yield from short_name_errors(name, f"{at}.name")
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
            yield from _container_errors(container, volumes, at)


def _container_errors(container: Document, volumes: set[Any], at: str) -> Iterator[FieldError]:
    image = container.get("image", "")
    if not image:
        yield required(f"{at}.image")
    elif image != image.strip():
        yield invalid_value(f"{at}.image", image, "must not have leading or trailing whitespace")
    yield from _word_error(container, "imagePullPolicy", at)
    for index, port in enumerate(container.get("ports") or ()):
        yield from _port_errors(port, f"{at}.ports[{index}]")
    for index, variable in enumerate(container.get("env") or ()):
        yield from _variable_errors(variable, f"{at}.env[{index}]")
    yield from _mount_errors(container.get("volumeMounts") or (), volumes, f"{at}.volumeMounts")
    yield from resource_errors(container.get("resources") or {}, f"{at}.resources")


def _port_errors(port: Document, at: str) -> Iterator[FieldError]:
    number = port.get("containerPort", 0)
    if number == 0:
        yield required(f"{at}.containerPort")
    elif not 1 <= number <= 65535:
        yield invalid_value(f"{at}.containerPort", number, "must be between 1 and 65535, inclusive")
    yield from _word_error(port, "protocol", at)


def _variable_errors(variable: Document, at: str) -> Iterator[FieldError]:
    name = variable.get("name", "")
    if not name:
        yield required(f"{at}.name")
    elif "=" in name or not name.isascii() or not name.isprintable():
        rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        yield invalid_value(f"{at}.name", name, rule)
    if variable.get("value") and variable.get("valueFrom"):
        yield invalid_value(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")


def _mount_errors(mounts: Any, volumes: set[Any], path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        at, name, where = f"{path}[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield required(f"{at}.name")
        elif name not in volumes:
            yield FieldError(f"{at}.name", "FieldValueNotFound", f'Not found: "{name}"')
        if not where:
            yield required(f"{at}.mountPath")
        elif where in seen:
            yield invalid_value(f"{at}.mountPath", where, "must be unique")
        seen.add(where)


# --- what steers the scheduler ---------------------------------------------------------------------------------------------


def _steering_errors(spec: Document, path: str) -> Iterator[FieldError]:
    if selector := spec.get("nodeSelector"):
        yield from label_errors(selector, f"{path}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration_errors(toleration, f"{path}.tolerations[{index}]")
    yield from _affinity_errors(spec.get("affinity") or {}, f"{path}.affinity.nodeAffinity")
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        yield from _spread_errors(constraint, f"{path}.topologySpreadConstraints[{index}]")
    gates = [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]
    for index, gate in enumerate(gates):
        yield from key_errors(gate, f"{path}.schedulingGates[{index}]")
        if gate in gates[:index]:
            yield duplicate(f"{path}.schedulingGates[{index}]", gate)
    if gates and spec.get("nodeName"):
        yield forbidden_field(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")


def _toleration_errors(toleration: Document, at: str) -> Iterator[FieldError]:
    key, operator, value = toleration.get("key"), toleration.get("operator"), toleration.get("value")
    effect = toleration.get("effect")
    if key:
        yield from key_errors(key, f"{at}.key")
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_value(f"{at}.operator", operator or "", why)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_value(f"{at}.effect", effect or "", why)
    if operator in (None, "", "Equal"):
        yield from value_errors(value or "", f"{at}.operator")
    elif operator == "Exists":
        if value:
            yield invalid_value(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        yield not_supported(f"{at}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in EFFECTS:
        yield not_supported(f"{at}.effect", effect, EFFECTS)


def _affinity_errors(affinity: Document, path: str) -> Iterator[FieldError]:
    node = affinity.get("nodeAffinity") or {}
    if (needed := node.get("requiredDuringSchedulingIgnoredDuringExecution")) is None:
        return
    at = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = needed.get("nodeSelectorTerms") or ()
    if not terms:
        yield required(at, "must have at least one node selector term")
    for index, term in enumerate(terms):
        for place, expression in enumerate(term.get("matchExpressions") or ()):
            yield from _expression_errors(expression, f"{at}[{index}].matchExpressions[{place}]")


def _expression_errors(expression: Document, at: str) -> Iterator[FieldError]:
    operator, values = expression.get("operator"), expression.get("values")
    if operator in ("In", "NotIn") and not values:
        yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield forbidden_field(f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt") and len(values or ()) != 1:
        yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        yield invalid_value(f"{at}.operator", operator or "", "not a valid selector operator")
    yield from key_errors(expression.get("key", ""), f"{at}.key")


def _spread_errors(constraint: Document, at: str) -> Iterator[FieldError]:
    if constraint.get("maxSkew", 0) <= 0:
        yield invalid_value(f"{at}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
    if not constraint.get("topologyKey"):
        yield required(f"{at}.topologyKey", "can not be empty")
    yield from _word_error(constraint, "whenUnsatisfiable", at)
