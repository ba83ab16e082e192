"""What the demo submits: about 40 GPU jobs of three teams, the same ones every time.

Among them one that only the H100 cluster can hold, one that no node of the fleet could ever hold, and enough small work
that every cluster is full for a while.
"""

from typing import Any

from msgspec import Struct


class JobPlan(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    pods: int
    gpus_per_pod: int
    #: GPU product the job insists on; "" takes any.
    product: str = ""
    run_s: float = 3.0
    priority_class: str = ""
    #: No node of the demo's fleet has this many GPUs.
    never_fits: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def _series(prefix: str, how_many: int, **fields: Any) -> list[JobPlan]:
    return [JobPlan(name=f"{prefix}-{i + 1}", **fields) for i in range(how_many)]


def plans() -> list[JobPlan]:
    """41 jobs in the order in which they are submitted."""
    return [
        *_series("pretrain", 1, namespace="research", pods=4, gpus_per_pod=8, product="H100", run_s=5.0),
        *_series("finetune", 8, namespace="research", pods=1, gpus_per_pod=4, product="H100", run_s=4.0),
        *_series("ablation", 10, namespace="research", pods=1, gpus_per_pod=2, run_s=3.0),
        *_series("sweep", 4, namespace="research", pods=4, gpus_per_pod=1, run_s=3.0, priority_class="background"),
        *_series("too-large", 1, namespace="research", pods=1, gpus_per_pod=16, never_fits=True),
        *_series("embed", 6, namespace="production", pods=2, gpus_per_pod=2, product="A100", run_s=4.0),
        *_series("hotfix", 2, namespace="production", pods=1, gpus_per_pod=4, run_s=2.0, priority_class="urgent"),
        *_series("serve-check", 5, namespace="production", pods=1, gpus_per_pod=1, product="L4", run_s=2.0),
        *_series("regression", 4, namespace="platform", pods=2, gpus_per_pod=1, run_s=2.0),
    ]


def manifest(plan: JobPlan) -> dict[str, Any]:
    """The batch/v1 Job a user would write: a queue name, GPU requests, and for the sandbox how long it runs."""
    gpus = {"nvidia.com/gpu": plan.gpus_per_pod}
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    if plan.priority_class:
        labels["kueue.x-k8s.io/priority-class"] = plan.priority_class
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/train:1",
                "resources": {"requests": {"cpu": "2", "memory": "8Gi", **gpus}, "limits": gpus},
            }
        ],
    }
    if plan.product:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": plan.product}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": plan.name, "namespace": plan.namespace, "labels": labels},
        "spec": {
            "parallelism": plan.pods,
            "completions": plan.pods,
            "template": {
                "metadata": {"annotations": {"sandbox.multikueue-hub.io/duration": f"{plan.run_s:g}s"}},
                "spec": pod,
            },
        },
    }
