"""Postgres behind one door. Nobody else speaks SQL.

    loops, web ──▶ clusters placements ledger history decisions views leases changes      queries, one module per table
                        │ each takes a Connection: the transaction it is part of
                        ▼
                   database ── errors        engine, transactions, term check, notifications; vendor errors translated
                        │ on start
                        ▼
                   schema ──▶ migrations     what `tables` draws, step by step, under an advisory lock

    embedded ──▶ postmaster, binaries        a server of our own where HUB_DATABASE_URL names none

Three rules hold everywhere. A row is saved only while it still is as the decision saw it; whether it was is the answer.
Only what the decision changed is written. What belongs together (placement, ledger, history, change notice) is one
transaction, so that no reader and no crash ever sees a part of it.
"""
