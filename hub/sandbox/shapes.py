"""How each value of an object is put together, which is what decides how patches and apply treat it.

Three questions, asked at every step down into an object: may parts of this value have different owners? by which keys
are the items of a list told apart? does a strategic merge patch merge this list or replace it? Kubernetes answers them
with the x-kubernetes-* marks of its OpenAPI document. `TYPES` holds these answers for the built-in kinds as a literal
table (Kubernetes API reference, v1.36); `crd_shape` reads them from the schema of a CustomResourceDefinition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Form = Literal["struct", "map", "atomic", "deduced", "set", "keyed"]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """One value. A scalar is always a leaf, whatever its shape says, and a list with the shape of an object is atomic."""

    #: struct: named fields; map: free keys; atomic: one owner for all of it; deduced: nothing is known, objects are maps
    #: and lists are atomic; set: a list of distinct scalars; keyed: a list of objects told apart by `keys`.
    form: Form = "struct"
    fields: dict[str, "Shape"] = field(default_factory=dict)
    #: Values of a map, items of a keyed list.
    items: "Shape | None" = None
    keys: tuple[str, ...] = ()
    #: What a key is when an item leaves it out.
    key_defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Strategic merge patch: "merge", "replace", "retainKeys" or both; "" is Kubernetes' default (merge objects, replace lists).
    strategy: frozenset[str] = frozenset()
    merge_key: str = ""
    #: A part that the kind always has, so that nobody owns its mere presence.
    inline: bool = False

    def child(self, name: str) -> "Shape":
        """Shape of a named field of an object."""
        if (found := self.fields.get(name)) is not None:
            return found
        if self.form == "deduced":
            return self
        return self.items or PLAIN


#: A struct of a built-in kind of which nothing needs saying: scalars, plain objects, lists with one owner.
PLAIN = Shape()
ATOMIC = Shape(form="atomic")
DEDUCED = Shape(form="deduced")
MAP = Shape(form="map")
#: A set that a strategic merge patch merges (finalizers), and one that it replaces.
MERGED_SET = Shape(form="set", strategy=frozenset({"merge"}))
SET = Shape(form="set")
#: Type of items that have one owner each.
WHOLE = "(whole)"


@dataclass(frozen=True, slots=True)
class _Use:
    """A field whose value has a type of the table: an entry of `TYPES` before names are resolved."""

    type: str
    form: Form = "struct"
    keys: tuple[str, ...] = ()
    merge_key: str = ""
    retain: bool = False
    inline: bool = False
    key_defaults: Mapping[str, Any] = field(default_factory=dict)


def _of(name: str) -> _Use:
    return _Use(name)


def _part(name: str) -> _Use:
    return _Use(name, inline=True)


def _by(
    *keys: str, of: str = "", merge: bool = True, retain: bool = False, inline: bool = False, **defaults: Any
) -> _Use:
    """A keyed list. Strategic merge patch knows one key only: the first."""
    return _Use(of, "keyed", keys, keys[0] if merge else "", retain, inline, defaults)


def _merged(key: str) -> _Use:
    """A list that strategic merge patches merge by `key`, though apply gives it one owner."""
    return _Use("", "atomic", merge_key=key)


_CONDITIONS = _by("type")
_RETAIN = Shape(strategy=frozenset({"retainKeys"}), inline=True)
_PORTS = _by("containerPort", "protocol", protocol="TCP")
_CONTAINER: dict[str, Shape | _Use] = {
    "env": _by("name", of="EnvVar"),
    "envFrom": ATOMIC,
    "ports": _PORTS,
    "resources": _part("ResourceRequirements"),
    "volumeDevices": _by("devicePath"),
    "volumeMounts": _by("mountPath"),
}
_OBJECT_REFERENCE = ATOMIC
_WORKLOAD_STATUS: dict[str, Shape | _Use] = {"conditions": _CONDITIONS}


def _kind(spec: str = "", status: str = "", **more: "Shape | _Use") -> dict[str, "Shape | _Use"]:
    return {"metadata": _part("ObjectMeta"), "spec": _part(spec), "status": _part(status), **more}


#: Type -> field -> what is special about it. Fields that are not named are scalars, plain objects or atomic lists.
TYPES: dict[str, dict[str, Shape | _Use]] = {
    "": {},
    "ObjectMeta": {
        "annotations": MAP,
        "finalizers": MERGED_SET,
        "labels": MAP,
        "ownerReferences": _by("uid", of=WHOLE),
    },
    # --- core -----------------------------------------------------------------------------------------------------
    "ConfigMap": {"metadata": _part("ObjectMeta"), "data": MAP, "binaryData": MAP},
    "Container": _CONTAINER,
    "EphemeralContainer": _CONTAINER,
    "ContainerRestartRuleOnExitCodes": {"values": SET},
    "ContainerStatus": {
        "allocatedResources": MAP,
        "allocatedResourcesStatus": _by("name", of="ResourceStatus"),
        "volumeMounts": _by("mountPath"),
        "resources": _of("ResourceRequirements"),
    },
    "ResourceStatus": {"resources": _by("resourceID", merge=False)},
    "NodeAllocatableResourceClaimStatus": {"containers": SET, "resources": MAP},
    "EnvVar": {"valueFrom": _of("EnvVarSource")},
    "EnvVarSource": dict.fromkeys(
        ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef"), ATOMIC
    ),
    "Event": {
        "metadata": _part("ObjectMeta"),
        "involvedObject": _OBJECT_REFERENCE,
        "regarding": _OBJECT_REFERENCE,
        "related": _OBJECT_REFERENCE,
        "source": _part(""),
    },
    "LimitRange": _kind(),
    "Namespace": _kind(status="NamespaceStatus"),
    "NamespaceStatus": {"conditions": _CONDITIONS},
    "Node": _kind("NodeSpec", "NodeStatus"),
    "NodeSpec": {"podCIDRs": MERGED_SET},
    "NodeStatus": {"addresses": _by("type"), "allocatable": MAP, "capacity": MAP, "conditions": _CONDITIONS},
    "PersistentVolume": _kind("PersistentVolumeSpec"),
    "PersistentVolumeSpec": {"capacity": MAP, "nodeAffinity": _of("VolumeNodeAffinity"), "csi": _of("CSIVolumeSource")},
    "VolumeNodeAffinity": {"required": ATOMIC},
    "CSIVolumeSource": {"volumeAttributes": MAP},
    "PersistentVolumeClaim": _kind("PersistentVolumeClaimSpec", "PersistentVolumeClaimStatus"),
    "PersistentVolumeClaimSpec": {
        "dataSource": ATOMIC,
        "resources": _part("ResourceRequirements"),
        "selector": ATOMIC,
    },
    "PersistentVolumeClaimStatus": {
        "allocatedResourceStatuses": MAP,
        "allocatedResources": MAP,
        "capacity": MAP,
        "conditions": _CONDITIONS,
    },
    "Pod": _kind("PodSpec", "PodStatus"),
    "PodSpec": {
        "affinity": _of("Affinity"),
        "containers": _by("name", of="Container", inline=True),
        "ephemeralContainers": _by("name", of="EphemeralContainer"),
        "hostAliases": _by("ip"),
        "imagePullSecrets": _by("name", of=WHOLE),
        "initContainers": _by("name", of="Container"),
        "nodeSelector": ATOMIC,
        "overhead": MAP,
        "resourceClaims": _by("name", retain=True),
        "resources": _of("ResourceRequirements"),
        "schedulingGates": _by("name"),
        "tolerations": ATOMIC,
        "topologySpreadConstraints": _by("topologyKey", "whenUnsatisfiable", of="TopologySpreadConstraint"),
        "volumes": _by("name", of="Volume", retain=True),
    },
    "PodStatus": {
        "conditions": _CONDITIONS,
        "hostIPs": _merged("ip"),
        "podIPs": _by("ip"),
        "resourceClaimStatuses": _by("name", retain=True),
    },
    "PodTemplateSpec": {"metadata": _part("ObjectMeta"), "spec": _part("PodSpec")},
    "Affinity": {"nodeAffinity": _of("NodeAffinity")},
    "NodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ATOMIC},
    "TopologySpreadConstraint": {"labelSelector": ATOMIC},
    "ResourceRequirements": {"claims": _by("name", merge=False), "limits": MAP, "requests": MAP},
    "Volume": {"ephemeral": _of("EphemeralVolumeSource"), "csi": _of("CSIVolumeSource")},
    "EphemeralVolumeSource": {"volumeClaimTemplate": _of("PersistentVolumeClaimTemplate")},
    "PersistentVolumeClaimTemplate": {
        "metadata": _part("ObjectMeta"),
        "spec": _part("PersistentVolumeClaimSpec"),
    },
    "ReplicationController": _kind("ReplicationControllerSpec", "ReplicationControllerStatus"),
    "ReplicationControllerSpec": {"selector": ATOMIC, "template": _of("PodTemplateSpec")},
    "ReplicationControllerStatus": _WORKLOAD_STATUS,
    "ResourceQuota": _kind("ResourceQuotaSpec", "ResourceQuotaStatus"),
    "ResourceQuotaSpec": {"hard": MAP, "scopeSelector": ATOMIC},
    "ResourceQuotaStatus": {"hard": MAP, "used": MAP},
    "Secret": {"metadata": _part("ObjectMeta"), "data": MAP, "stringData": MAP},
    "Service": _kind("ServiceSpec", "ServiceStatus"),
    "ServiceSpec": {"ports": _by("port", "protocol", protocol="TCP"), "selector": ATOMIC},
    "ServiceStatus": {"conditions": _CONDITIONS, "loadBalancer": _part("")},
    "ServiceAccount": {"metadata": _part("ObjectMeta"), "secrets": _by("name", of=WHOLE)},
    # --- batch, apps, autoscaling, policy -------------------------------------------------------------------------
    "Job": _kind("JobSpec", "JobStatus"),
    "JobSpec": {
        "podFailurePolicy": _of("PodFailurePolicy"),
        "selector": ATOMIC,
        "template": _part("PodTemplateSpec"),
    },
    "PodFailurePolicy": {"rules": ATOMIC},
    "PodFailurePolicyOnExitCodesRequirement": {"values": SET},
    "JobStatus": {"conditions": _merged("type"), "uncountedTerminatedPods": _of("UncountedTerminatedPods")},
    "UncountedTerminatedPods": {"failed": SET, "succeeded": SET},
    "CronJob": _kind("CronJobSpec", "CronJobStatus"),
    "CronJobSpec": {"jobTemplate": _part("JobTemplateSpec")},
    "JobTemplateSpec": {"metadata": _part("ObjectMeta"), "spec": _part("JobSpec")},
    "CronJobStatus": {"active": ATOMIC},
    "Deployment": _kind("DeploymentSpec", "DeploymentStatus"),
    "DeploymentSpec": {"selector": ATOMIC, "strategy": _RETAIN, "template": _part("PodTemplateSpec")},
    "DeploymentStatus": _WORKLOAD_STATUS,
    "ReplicaSet": _kind("ReplicaSetSpec", "ReplicaSetStatus"),
    "ReplicaSetSpec": {"selector": ATOMIC, "template": _part("PodTemplateSpec")},
    "ReplicaSetStatus": _WORKLOAD_STATUS,
    "StatefulSet": _kind("StatefulSetSpec", "StatefulSetStatus"),
    "StatefulSetSpec": {
        "selector": ATOMIC,
        "template": _part("PodTemplateSpec"),
        "updateStrategy": _part(""),
        "volumeClaimTemplates": ATOMIC,
    },
    "StatefulSetStatus": _WORKLOAD_STATUS,
    "DaemonSet": _kind("DaemonSetSpec", "DaemonSetStatus"),
    "DaemonSetSpec": {"selector": ATOMIC, "template": _part("PodTemplateSpec"), "updateStrategy": _part("")},
    "DaemonSetStatus": _WORKLOAD_STATUS,
    "HorizontalPodAutoscaler": _kind("HorizontalPodAutoscalerSpec", "HorizontalPodAutoscalerStatus"),
    "HorizontalPodAutoscalerSpec": {"scaleTargetRef": _part("")},
    "HorizontalPodAutoscalerStatus": _WORKLOAD_STATUS,
    "PodDisruptionBudget": _kind("PodDisruptionBudgetSpec", "PodDisruptionBudgetStatus"),
    "PodDisruptionBudgetSpec": {"selector": Shape(form="atomic", strategy=frozenset({"replace"}))},
    "PodDisruptionBudgetStatus": {"conditions": _CONDITIONS, "disruptedPods": MAP},
    # --- the rest -------------------------------------------------------------------------------------------------
    "APIService": _kind(status="APIServiceStatus"),
    "APIServiceStatus": {"conditions": _CONDITIONS},
    "ClusterRole": {"metadata": _part("ObjectMeta"), "rules": ATOMIC},
    "Role": {"metadata": _part("ObjectMeta"), "rules": ATOMIC},
    "ClusterRoleBinding": {"metadata": _part("ObjectMeta"), "roleRef": ATOMIC, "subjects": ATOMIC},
    "RoleBinding": {"metadata": _part("ObjectMeta"), "roleRef": ATOMIC, "subjects": ATOMIC},
    "CSINode": _kind("CSINodeSpec"),
    "CSINodeSpec": {"drivers": _by("name")},
    "CustomResourceDefinition": _kind("CustomResourceDefinitionSpec", "CustomResourceDefinitionStatus"),
    "CustomResourceDefinitionSpec": {"names": _part(""), "versions": ATOMIC},
    "CustomResourceDefinitionStatus": {"acceptedNames": _part(""), "conditions": _by("type", merge=False)},
    "MutatingWebhookConfiguration": {"metadata": _part("ObjectMeta"), "webhooks": _by("name", of="Webhook")},
    "ValidatingWebhookConfiguration": {"metadata": _part("ObjectMeta"), "webhooks": _by("name", of="Webhook")},
    "Webhook": {
        "clientConfig": _part(""),
        "matchConditions": _by("name"),
        "namespaceSelector": ATOMIC,
        "objectSelector": ATOMIC,
    },
    "Endpoint": {"addresses": SET},
    "EndpointSlice": {"metadata": _part("ObjectMeta"), "endpoints": ATOMIC, "ports": ATOMIC},
    "StorageClass": {"metadata": _part("ObjectMeta"), "parameters": MAP},
}
_PLAIN_KIND: dict[str, Shape | _Use] = _kind()


def _resolved(use: Shape | _Use, types: Mapping[str, Shape]) -> Shape:
    if isinstance(use, Shape):
        return use
    target = types[use.type]
    if use.form == "struct":
        return Shape(fields=target.fields, inline=use.inline)
    words = {"merge": bool(use.merge_key), "retainKeys": use.retain}
    strategy = frozenset(word for word, wanted in words.items() if wanted)
    return Shape(
        form=use.form,
        items=target,
        keys=use.keys,
        key_defaults=use.key_defaults,
        strategy=strategy,
        merge_key=use.merge_key,
        inline=use.inline,
    )


def _resolve_all() -> dict[str, Shape]:
    types = {name: Shape() for name in TYPES} | {WHOLE: ATOMIC}
    for name, fields in TYPES.items():
        types[name].fields.update({key: _resolved(use, types) for key, use in fields.items()})
    return types


_SHAPES = _resolve_all()
_PLAIN_SHAPE = Shape(fields={key: _resolved(use, _SHAPES) for key, use in _PLAIN_KIND.items()})


def builtin_shape(kind: str) -> Shape:
    """Shape of a built-in kind, such as "Job", or of one of its parts, such as "PodSpec"."""
    return _SHAPES.get(kind, _PLAIN_SHAPE)


def type_shape(name: str) -> Shape:
    """Shape of a type wherever it stands, such as "ContainerStatus", even inside a list that has one owner."""
    return _SHAPES.get(name, PLAIN)


# --- custom resources ----------------------------------------------------------------------------------------------------


def crd_shape(schema: Mapping[str, Any] | None) -> Shape:
    """Shape of a custom resource, from its `openAPIV3Schema` (None: nothing is known about it)."""
    if not schema:
        return Shape(fields={"metadata": _SHAPES["ObjectMeta"]}, form="deduced")
    root = _from_schema(schema)
    return Shape(form=root.form, fields={**root.fields, "metadata": Shape(fields=_SHAPES["ObjectMeta"].fields)})


def _from_schema(schema: Mapping[str, Any]) -> Shape:
    if schema.get("type") == "array" or "items" in schema:
        return _list_from_schema(schema)
    if schema.get("x-kubernetes-map-type") == "atomic":
        return ATOMIC
    if isinstance(values := schema.get("additionalProperties"), dict):
        return Shape(form="map", items=_from_schema(values))
    fields = {name: _from_schema(part) for name, part in schema.get("properties", {}).items()}
    if schema.get("x-kubernetes-embedded-resource"):
        fields["metadata"] = Shape(fields=_SHAPES["ObjectMeta"].fields)
    open_ended = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    return Shape(form="deduced" if open_ended else "struct", fields=fields)


def _list_from_schema(schema: Mapping[str, Any]) -> Shape:
    item = schema.get("items", {})
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return SET
        case "map":
            keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
            properties = item.get("properties", {})
            defaults = {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}
            return Shape(form="keyed", items=_from_schema(item), keys=keys, key_defaults=defaults)
        case _:
            return ATOMIC
