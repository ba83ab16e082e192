"""The pods a batch/v1 Job is made of: its template with names, labels, owner, tracking finalizer and completion index."""

from collections.abc import Mapping
from typing import Any

import orjson

from hub.sandbox import job_policies as rules

Manifest = Mapping[str, Any]

#: A pod that has it was not counted yet.
FINALIZER = "batch.kubernetes.io/job-tracking"


def is_tracked(pod: Manifest) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def pod_of(job: Manifest, *, index: int | None = None, failures: int | None = None) -> dict[str, Any]:
    """One of the Job's pods, to be created. `failures` of its index so far are noted on it when given."""
    meta, template = job["metadata"], orjson.loads(orjson.dumps(job["spec"]["template"]))
    given, spec = template.get("metadata") or {}, template["spec"]
    labels = {"batch.kubernetes.io/controller-uid": meta["uid"], "batch.kubernetes.io/job-name": meta["name"]}
    labels |= {"controller-uid": meta["uid"], "job-name": meta["name"]} | (given.get("labels") or {})
    annotations = dict(given.get("annotations") or {})
    name = f"{meta['name']}-"
    if index is not None:
        name = f"{meta['name']}-{index}-"
        labels[rules.INDEX] = annotations[rules.INDEX] = str(index)
        spec.setdefault("hostname", f"{meta['name']}-{index}")
        _tell_index(spec)
    if failures is not None:
        annotations[rules.INDEX_FAILURES] = str(failures)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    made: dict[str, Any] = {"generateName": name, "namespace": meta["namespace"], "labels": labels}
    made |= {"annotations": annotations} if annotations else {}
    made["finalizers"] = [*(f for f in given.get("finalizers") or () if f != FINALIZER), FINALIZER]
    made["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def _tell_index(spec: dict[str, Any]) -> None:
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{rules.INDEX}']"}}
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        env = container.setdefault("env", [])
        if all(e["name"] != "JOB_COMPLETION_INDEX" for e in env):
            env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
