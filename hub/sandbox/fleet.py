"""Simulated clusters, each with its own HTTPS address and kubeconfig: one in a test, many in a process of their own.

    SPEC.yaml ──read_spec──▶ ClusterSpec... ──▶ Fleet ──▶ SandboxCluster = API server + simulation + HTTPS
                                                  │            all clusters share one clock, one queue, one observer
                                                  └──▶ Observer: what really ran, on all of them

A spec file lists clusters; everything but the name may be left out:

    clusters:
      - name: hopper
        crds: true                  # install our CustomResourceDefinitions
        namespaces: [team-a]        # create these
        nodes:                      # groups of equal nodes; see hub.sandbox.nodes.NodeGroup
          - {name: h100, count: 4, gpus: 8, product: H100, cpu: 192, memory: 2Ti, zone: a}
        pace: {run_s: 5}            # how fast things go; see hub.sandbox.script.Pace
        tokens:                     # users besides the admin of the kubeconfig
          - {token: secret, user: ann, groups: [team-a]}
"""

import base64
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from hub.kueue.api import crds
from hub.kueue.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, PODS
from hub.kueue.api.v1beta2 import KINDS
from hub.kueue.runtime import tls
from hub.sandbox.access import ADMIN, User
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.faults import Faults
from hub.sandbox.http import Serving, make_app, serve
from hub.sandbox.job_policies import phase
from hub.sandbox.nodes import NodeGroup
from hub.sandbox.observer import Observer
from hub.sandbox.script import Pace
from hub.sandbox.simulation import Simulation
from hub.sandbox.timers import LoopTimers

HOSTS = ("127.0.0.1", "localhost", "kubernetes.default.svc")


class FleetError(Exception):
    """Simulated clusters cannot be made as asked."""


class SpecError(FleetError):
    """A spec file is wrong; says where."""


class TokenSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whoever shows `token` is `user`, a member of `groups`."""

    token: str
    user: str
    groups: list[str] = []


class ClusterSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    nodes: list[NodeGroup] = []
    crds: bool = False
    namespaces: list[str] = []
    pace: Pace = Pace()
    tokens: list[TokenSpec] = []


class FleetSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    clusters: list[ClusterSpec]


def read_spec(text: str) -> FleetSpec:
    """Raises SpecError."""
    try:
        spec = msgspec.convert(yaml.safe_load(text), FleetSpec)
    except yaml.YAMLError as error:
        raise SpecError(f"not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise SpecError(str(error)) from error
    _refuse_doubles("clusters", [cluster.name for cluster in spec.clusters])
    for cluster in spec.clusters:
        _refuse_doubles(f"nodes of cluster {cluster.name}", [group.name for group in cluster.nodes])
    return spec


def _refuse_doubles(what: str, names: list[str]) -> None:
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"{what}: the name {doubled[0]} stands there more than once")


class SandboxCluster:
    """One simulated cluster. Without `timers` it runs in real time, and with its own observer."""

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        timers: LoopTimers | None = None,
        observer: Observer | None = None,
        ca: tls.Identity | None = None,
        seed: int | None = None,
    ) -> None:
        self.spec, self.name = spec, spec.name
        self.timers = timers or LoopTimers()
        self._drives_time = timers is None
        self.api = ApiServer(spec.name, self.timers.clock, seed=seed)
        self.faults = Faults(self.api)
        self.sim = Simulation(self.api, self.timers, spec.pace, observer)
        self.observer = self.sim.observer
        self.admin_token = secrets.token_urlsafe(24)
        self.api.access.tokens[self.admin_token] = ADMIN
        for known in spec.tokens:
            self.api.access.tokens[known.token] = User(name=known.user, groups=tuple(known.groups))
        self._ca = ca or tls.make_ca("sandbox", self.timers.clock())
        self._serving: Serving | None = None

    @property
    def url(self) -> str:
        assert self._serving is not None, f"cluster {self.name} is not started"
        return self._serving.url

    @property
    def ca_pem(self) -> str:
        return self._ca.certificate_pem

    async def start(self) -> None:
        """Serve at a free port of the loopback interface, and let things happen."""
        self.sim.start()
        for group in self.spec.nodes:
            self.sim.add_nodes(group)
        for namespace in self.spec.namespaces:
            self.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for kind in KINDS if self.spec.crds else ():
            self.api.create(CUSTOM_RESOURCE_DEFINITIONS, crds.manifest(kind))
        if self._drives_time:
            self.timers.start()
        identity = tls.make_certificate(self.name, self.timers.clock(), ca=self._ca, hosts=HOSTS)
        self._serving = await serve(
            make_app(self.api, self.faults), tls=tls.server_context(identity), ca_pem=self.ca_pem
        )

    async def stop(self) -> None:
        """Close the address and let nothing more happen."""
        self.sim.stop()
        if self._drives_time:
            self.timers.stop()
        if self._serving is not None:
            await self._serving.close()
            self._serving = None

    def kubeconfig_text(self, token: str = "") -> str:
        """A kubeconfig for the admin, or for whoever has `token`."""
        cluster = {"server": self.url, "certificate-authority-data": base64.b64encode(self.ca_pem.encode()).decode()}
        user = "admin" if not token else "user"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
            "current-context": self.name,
        }
        return yaml.safe_dump(config, sort_keys=False)

    def summary(self) -> dict[str, Any]:
        """What a person asks of a cluster: where it is, its nodes and what is free on them, its pods by phase."""
        phases: dict[str, int] = {}
        for pod in self.api.list(PODS):
            phases[phase(pod)] = phases.get(phase(pod), 0) + 1
        nodes = [self._node_summary(node) for node in self.api.list(NODES)]
        faults = msgspec.to_builtins(self.faults.settings)
        return {"name": self.name, "url": self.url, "nodes": nodes, "pods": phases, "faults": faults}

    def _node_summary(self, node: Mapping[str, Any]) -> dict[str, Any]:
        name, status = node["metadata"]["name"], node.get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        unschedulable = bool((node.get("spec") or {}).get("unschedulable"))
        return {"name": name, "ready": ready, "unschedulable": unschedulable, "free": self.sim.scheduler.free(name)}


class Fleet:
    """Many clusters in one process."""

    def __init__(self, specs: Iterable[ClusterSpec]) -> None:
        self.timers = LoopTimers()
        self.observer = Observer()
        ca = tls.make_ca("sandbox", self.timers.clock())
        made = [SandboxCluster(spec, timers=self.timers, observer=self.observer, ca=ca) for spec in specs]
        self.clusters = {cluster.name: cluster for cluster in made}

    async def start(self) -> None:
        for cluster in self.clusters.values():
            await cluster.start()
        self.timers.start()

    async def stop(self) -> None:
        self.timers.stop()
        for cluster in self.clusters.values():
            await cluster.stop()

    def write_kubeconfigs(self, folder: Path) -> dict[str, Path]:
        """One file per cluster, readable by us alone."""
        paths = {name: folder / f"{name}.kubeconfig" for name in self.clusters}
        for name, path in paths.items():
            write_secret(path, self.clusters[name].kubeconfig_text())
        return paths


def write_secret(path: Path, text: str) -> None:
    """The file appears complete and with mode 0600, or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)
