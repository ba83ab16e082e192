"""Admission: which workloads get quota, which have to give it back, and why everybody else waits.

    objects ──events──▶ AdmissionState ──instructions──▶ whoever writes them
                             │
             works, queues, quota tree, topologies           everything in memory, rebuilt from objects at any time

One cycle, as `cycle` numbers it:

    1 wake       parked workloads return to their queues where something changed            queues, reactions
    2 heads      one workload from every active ClusterQueue                                 turn
    3 nominate   flavors and, if need be, victims or fewer pods, for each on its own         nomination, flavors, preemption
    4 order      within quota first, then priority and time; or a tournament by fair share   cycle, tournament
    5 process    one after the other on what the earlier ones left: admit, preempt, skip     cycle, turn
    6 requeue    ready for the next cycle, or parked until something changes                 queues

What makes it cost what changes, not what exists:

    quota        every (flavor, resource) is a chain of cells from a ClusterQueue to its root; reading and charging walk it
    what-if      removals are tried on the live tree and undone; there are no snapshots                what_if
    lanes        workloads of one shape wait, park and return together                                 queues
    plans        flavors that taints and labels allow are worked out once per shape and queue          plans
    running      candidates for preemption are kept in the order in which they would go                running

Decisions are Kueue's, checked against recorded ones (tests/conformance); the few rules of our own are in `better`, and
docs/differences.md explains them.
"""
