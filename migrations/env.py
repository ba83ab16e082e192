"""What alembic runs: on the connection that hub.store.schema hands over, or on `-x url=` for people."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from hub.store.database import make_engine
from hub.store.tables import metadata


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_run() -> None:
    engine = make_engine(context.get_x_argument(as_dictionary=True)["url"])
    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()


if (handed_over := context.config.attributes.get("connection")) is not None:
    run(handed_over)
else:
    asyncio.run(connect_and_run())
