"""A simulated cluster with our kinds, a client of it, and the queues that most tests want."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hub.kueue.api.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, PODS, RESOURCE_FLAVORS, WORKLOADS
from hub.kueue.runtime.client import Client
from hub.sandbox.fleet import ClusterSpec, SandboxCluster
from hub.sandbox.nodes import NodeGroup
from hub.sandbox.script import Pace

FAST = Pace(start_s=0.01, run_s=0.05, stop_s=0.01, restart_s=0.01)
GPU = "nvidia.com/gpu"
KUEUE = "kueue.x-k8s.io/v1beta2"


@asynccontextmanager
async def sandbox_cluster(folder: Path, name: str = "east", *, gpus: int = 8) -> AsyncIterator[SandboxCluster]:
    """Two nodes of `gpus` GPUs each, namespace team-a, our CRDs. Its kubeconfig is `folder`/`name`.kubeconfig."""
    nodes = [NodeGroup(name="h100", count=2, gpus=gpus, product="H100")]
    spec = ClusterSpec(name=name, crds=True, namespaces=["team-a"], nodes=nodes, pace=FAST)
    cluster = SandboxCluster(spec, seed=1)
    await cluster.start()
    (folder / f"{name}.kubeconfig").write_text(cluster.kubeconfig_text())
    try:
        yield cluster
    finally:
        await cluster.stop()


@asynccontextmanager
async def client_of(folder: Path, name: str = "east") -> AsyncIterator[Client]:
    client = await Client.connect(str(folder / f"{name}.kubeconfig"))
    try:
        yield client
    finally:
        await client.close()


async def eventually(cluster: SandboxCluster, condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Wait until it holds; it is asked whenever an object of the cluster has changed."""
    changed = asyncio.Event()
    watched = (WORKLOADS, JOBS, PODS, CLUSTER_QUEUES, LOCAL_QUEUES)
    unsubscribe = [cluster.api.subscribe(resource, lambda *_: changed.set()) for resource in watched]
    try:
        async with asyncio.timeout(limit_s):
            while not condition():
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:.0f} s: {what}") from None
    finally:
        for stop in unsubscribe:
            stop()


def kueue(kind: str, name: str, *, namespace: str = "", **fields: Any) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": KUEUE, "kind": kind, "metadata": meta, **fields}


def add_queues(cluster: SandboxCluster, *, quota: int = 16, checks: list[str] | None = None, **spec: Any) -> None:
    """ClusterQueue cq of flavor h100 with so many GPUs, and LocalQueue main of namespace team-a."""
    flavor = {
        "name": "h100",
        "resources": [{"name": "cpu", "nominalQuota": 1000}, {"name": GPU, "nominalQuota": quota}],
    }
    groups = [{"coveredResources": ["cpu", GPU], "flavors": [flavor]}]
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
    queue = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
    labels = {"nvidia.com/gpu.product": "H100"}
    cluster.api.create(RESOURCE_FLAVORS, kueue("ResourceFlavor", "h100", spec={"nodeLabels": labels}))
    cluster.api.create(CLUSTER_QUEUES, kueue("ClusterQueue", "cq", spec=queue))
    cluster.api.create(LOCAL_QUEUES, kueue("LocalQueue", "main", namespace="team-a", spec={"clusterQueue": "cq"}))


def gpu_job(name: str, *, gpus: int = 1, queue: str = "main", **spec: Any) -> dict[str, Any]:
    """A Job as the webhook leaves it, suspended: `gpus` for each pod."""
    resources = {"requests": {"cpu": "1", GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    container = {"name": "main", "image": "trainer:1", "resources": resources}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"name": name, "namespace": "team-a", "labels": {"kueue.x-k8s.io/queue-name": queue}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"suspend": True, "template": template, **spec},
    }
