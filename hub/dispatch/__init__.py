"""Everything about many clusters, as pure decisions: values and `now` in, values out.

The life of a placement, and who decides what:

    Workload with quota ──request.py──▶ Request ──decide.py──▶ Plan ──(one transaction)──▶ Placement Offered + ledger rows
                                         ▲   filters, scores, nominate                        │ intent with the next poll
    cluster reports + ledger ──capacity.py──▶ Fleet                                           ▼
    what the agent says ───────────────────────────────placement.py: step──▶ Admitted, Running, Finished, or
                                                                             Refused / Evicted ──▶ the next cluster

Nothing runs twice, because (1) the database holds at most one live placement per workload, (2) a new one is offered only
when no older one `blocks_another_start`: everything but a lost one must be `released` by the agent's own word first, and
(3) every intent and every report carries a generation, so what was held up on its way is recognised and dropped.

Nothing is charged twice or too little, because the ledger counts a placement from its offer until its release, and what
a report already counts as ours is not subtracted again (ledger.py).
"""
