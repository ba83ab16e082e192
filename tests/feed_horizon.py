"""The change feed shows what lies below the oldest transaction of the whole server, other tests' included."""

from hub.store.database import Database
from tests.waiting import until


async def everything_is_readable(database: Database) -> None:
    """Wait until readers of the feed see all that was committed before this call."""
    async with database.transaction() as connection:
        last = int(await connection.value("SELECT CAST(pg_current_xact_id() AS text)"))

    async def passed() -> bool:
        async with database.transaction() as connection:
            oldest = await connection.value("SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text)")
        return int(oldest) > last

    await until(passed, f"transaction {last} and all before it are over")
