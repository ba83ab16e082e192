"""Brings a database's schema to this release's, on start, whoever else is starting.

    read the revision ──▶ known and newest: done
            │ behind
            ▼
    session advisory lock ──▶ read again ──▶ each revision in a transaction of its own, with lock and statement time-outs

A schema that this release does not know is refused: an older hub must not write to it.
"""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from hub.store.errors import SchemaTooNew, translated

log = logging.getLogger(__name__)

#: The key of the advisory lock: any number that nobody else uses on this database.
MIGRATION_LOCK = 7_203_118_405_512_001
#: How long to wait for another process's migration.
_TURN_TIMEOUT = "5min"
#: A migration that cannot get a table lock soon gives up, rather than making everybody queue behind it.
_LOCK_TIMEOUT = "5s"
_STATEMENT_TIMEOUT = "10min"


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(migrations.__path__)))))
    return config


#: A dump brought these from another server, whose transaction numbers mean nothing here.
_FOREIGN = "xid >= pg_snapshot_xmax(pg_current_snapshot())"
_AFTER_A_RESTORE = (
    f"DELETE FROM changes WHERE {_FOREIGN}",
    f"UPDATE changes_floor SET xid = '0', id = 0 WHERE {_FOREIGN}",
)


async def prepare(engine: AsyncEngine) -> None:
    """Everything that a process does to the database before it uses it. Raises SchemaTooNew, or Unavailable."""
    await migrate(engine)
    with translated():
        async with engine.begin() as connection:
            for statement in _AFTER_A_RESTORE:
                await connection.execute(text(statement))


async def migrate(engine: AsyncEngine) -> None:
    """Raises SchemaTooNew, or Unavailable when the lock or the server cannot be had."""
    with translated():
        async with engine.connect() as connection:
            if await connection.run_sync(_is_newest):
                return
            await connection.rollback()
            autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await autocommit.execute(text(f"SET lock_timeout = '{_TURN_TIMEOUT}'"))
            await autocommit.execute(text(f"SET statement_timeout = '{_TURN_TIMEOUT}'"))
            await autocommit.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
            try:
                async with engine.connect() as worker:
                    await worker.run_sync(_upgrade)
            finally:
                # Closed, not returned to the pool: the lock and the time-outs end with the session.
                await autocommit.invalidate()


def _is_newest(connection: Connection) -> bool:
    """Raises SchemaTooNew for a revision that this release does not have."""
    scripts = ScriptDirectory.from_config(alembic_config())
    found = set(MigrationContext.configure(connection).get_current_heads())
    known = {revision.revision for revision in scripts.walk_revisions()}
    if unknown := found - known:
        raise SchemaTooNew(
            f"the database is at schema revision {', '.join(sorted(unknown))}, and this release knows up to "
            f"{scripts.get_current_head()}: run the newer release that changed it, or restore a backup made before it"
        )
    return found == set(scripts.get_heads())


def _upgrade(connection: Connection) -> None:
    if _is_newest(connection):  # somebody else did it while we waited for our turn
        return
    connection.rollback()
    connection.execute(text(f"SET lock_timeout = '{_LOCK_TIMEOUT}'"))
    connection.execute(text(f"SET statement_timeout = '{_STATEMENT_TIMEOUT}'"))
    connection.commit()
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    log.info("database schema is at revision %s", ScriptDirectory.from_config(config).get_current_head())
    connection.invalidate()  # the time-outs above are this session's
