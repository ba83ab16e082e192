"""The database's schema, step by step. Every revision says why; expand first, contract one release later.

A revision that only adds may run while the previous release still works on the database. One that takes away waits
until no supported release reads it any more. `hub.store.schema` runs them on start, one process at a time.

A new revision, with a server that has the present schema:

    alembic -c migrations/alembic.ini -x url=postgresql://... revision --autogenerate -m "why"
"""
