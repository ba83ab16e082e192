"""Simulated clusters in one process: a Kubernetes API in memory, with nodes, a scheduler, pods and Jobs.

    kubectl, kubernetes-asyncio ──HTTPS──▶ http.py ──▶ apiserver.py ──▶ storage.py
                                              │            │  ▲             │ events
         faults.py (cut, slow, hang, drop) ───┘            │  └── nodes, scheduler, pods, jobs (in process)
         access.py (tokens, RBAC), webhooks.py             └── strategies (rules of one kind), collector.py (owners,
                                                               finalizers, namespaces), definitions.py (CRDs)

For trying the product without Kubernetes, for tests and for load tests. What it does, it does as kube-apiserver does:
the cases of tests/contract run against both. Objects are plain dicts; once stored they are never changed in place, so
reads, watches and controllers share them without copying.
"""
