"""Migrations: they make what the models say, in any number of processes at once, and refuse what they do not know."""

import asyncio

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from hub.store import schema
from hub.store.database import Database, make_engine
from hub.store.errors import SchemaTooNew
from hub.store.tables import metadata
from tests.conftest import ManualClock
from tests.postgres_server import with_database

#: What alembic does not compare: checks, keys and index conditions, as Postgres prints them.
DEFINITIONS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
UNION ALL
SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
UNION ALL
SELECT table_name, column_name, concat_ws(' ', data_type, is_nullable, column_default)
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
ORDER BY 1, 2, 3
"""


async def test_models_and_migrations_agree(database_url: str, postgres_url: str):
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    engine = make_engine(database_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        migrated = (await connection.execute(text(DEFINITIONS))).all()
        await connection.rollback()
        await connection.execute(text("DROP SCHEMA public CASCADE"))
        await connection.execute(text("CREATE SCHEMA public"))
        await connection.run_sync(metadata.create_all)
        modelled = (await connection.execute(text(DEFINITIONS))).all()
        await connection.rollback()
    await engine.dispose()
    assert modelled == migrated


@pytest.fixture
async def empty_url(postgres_url: str, database_url: str):
    """A database without any schema."""
    admin = await asyncpg.connect(postgres_url)
    name = "empty_" + database_url.rpartition("/test_")[2].partition("?")[0]
    await admin.execute(f"CREATE DATABASE {name}")
    yield with_database(postgres_url, name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def test_processes_that_start_together_migrate_once(empty_url: str, clock: ManualClock):
    opened = await asyncio.gather(*(Database.open(empty_url, clock=clock, pool_size=2) for _ in range(5)))
    for database in opened:
        async with database.transaction() as connection:
            assert await connection.value("SELECT count(*) FROM alembic_version") == 1
        await database.close()


async def test_a_newer_schema_is_refused(database: Database, database_url: str, clock: ManualClock):
    async with database.transaction() as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNew, match=r"at schema revision 9999, and this release knows up to \d+"):
        await Database.open(database_url, clock=clock)


async def test_a_migration_leaves_no_time_outs_on_pooled_connections(empty_url: str, clock: ManualClock):
    database = await Database.open(empty_url, clock=clock)
    async with database.transaction() as connection:
        assert await connection.value("SHOW lock_timeout") == "20s"
        assert await connection.value("SHOW statement_timeout") == "1min"
    await database.close()
    assert schema.MIGRATION_LOCK > 0
