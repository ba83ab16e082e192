"""The manifest that a person applies on a worker cluster to give it an agent, and the same as environment variables."""

import base64
from typing import Any

import yaml

NAMESPACE = "multikueue-hub"
NAME = "multikueue-hub-agent"
PORT = 8443
IMAGE = "multikueue-hub-agent"


def environment(name: str, hub_url: str) -> dict[str, str]:
    """For an agent that is started by hand. The token goes into a file of its own, readable by the agent only."""
    return {
        "AGENT_NAME": name,
        "AGENT_HUB_URL": hub_url,
        "AGENT_JOIN_TOKEN_FILE": "join-token",
        "AGENT_STATE_DIR": f"agent-{name}",
    }


def manifest(*, name: str, token: str, hub_url: str, ca_pem: str, version: str) -> str:
    """YAML documents: namespace, service account, rights, the token as a Secret, and the Deployment."""
    secret = {"join-token": token, **({"hub-ca.crt": ca_pem} if ca_pem else {})}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta()},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": RULES,
        },
        _binding(),
        {"apiVersion": "v1", "kind": "Secret", "metadata": _meta(), "type": "Opaque", "data": data},
        _deployment(name, hub_url, version, with_ca=bool(ca_pem)),
    ]
    return yaml.safe_dump_all(documents, sort_keys=False)


_READ = ["get", "list", "watch"]
#: Least rights: what the agent reads, and the few things that it writes.
RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "limitranges"], "verbs": _READ},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": [*_READ, "create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "get"]},
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": _READ},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": [*_READ, "create", "patch", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["patch"]},
    {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": [*_READ, "create", "patch", "delete"]},
    {"apiGroups": ["kueue.x-k8s.io"], "resources": ["localqueues"], "verbs": [*_READ, "create", "patch"]},
    {
        "apiGroups": ["kueue.x-k8s.io"],
        "resources": [
            "admissionchecks",
            "clusterqueues",
            "cohorts",
            "resourceflavors",
            "topologies",
            "workloadpriorityclasses",
        ],
        "verbs": [*_READ, "patch"],
    },
    {
        "apiGroups": ["kueue.x-k8s.io"],
        "resources": ["workloads/status", "clusterqueues/status", "localqueues/status", "cohorts/status"],
        "verbs": ["patch"],
    },
]


def _meta() -> dict[str, str]:
    return {"name": NAME, "namespace": NAMESPACE}


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", **_meta()}],
    }


def _deployment(name: str, hub_url: str, version: str, *, with_ca: bool) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": NAME}
    settings = {
        "AGENT_NAME": name,
        "AGENT_HUB_URL": hub_url,
        "AGENT_HOST": "0.0.0.0",  # noqa: S104 - inside its own pod, behind mutual TLS
        "AGENT_PORT": str(PORT),
        "AGENT_JOIN_TOKEN_FILE": "/etc/agent/join-token",
        "AGENT_STATE_DIR": "/var/lib/agent",
        **({"AGENT_HUB_CA_FILE": "/etc/agent/hub-ca.crt"} if with_ca else {}),
    }
    container = {
        "name": "agent",
        "image": f"{IMAGE}:{version}",
        "env": [{"name": key, "value": value} for key, value in settings.items()],
        "ports": [{"name": "polls", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "token", "mountPath": "/etc/agent", "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/agent"},
        ],
    }
    pod = {
        "serviceAccountName": NAME,
        "containers": [container],
        "volumes": [{"name": "token", "secret": {"secretName": NAME}}, {"name": "state", "emptyDir": {}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_meta(), "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
