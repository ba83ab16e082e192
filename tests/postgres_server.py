"""The Postgres that all tests of one run share, in a process of its own: `python -m tests.postgres_server FOLDER`.

It prints its URL when it is ready, with the schema in a template database, and stops by itself when nobody holds a shared
lock on FOLDER/users any more, however the tests ended. See `postgres_url` in conftest.py.
"""

import asyncio
import fcntl
import sys
import time
from pathlib import Path

import asyncpg

from hub.store.database import Database
from hub.store.embedded import EmbeddedPostgres

TEMPLATE = "migrated"
#: Tests want speed, and never cut the power.
SETTINGS = {"synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "64MB", "max_connections": "200"}


def with_database(url: str, name: str) -> str:
    return url.replace("/postgres?", f"/{name}?")


def wait_until_unused(folder: Path) -> None:
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)


async def serve(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "data", time.time, durable=False, settings=SETTINGS)
    await server.start()
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE DATABASE {TEMPLATE}")
    await connection.close()
    database = await Database.open(with_database(server.url, TEMPLATE), clock=time.time)
    await database.close()
    print(server.url, flush=True)
    await asyncio.to_thread(wait_until_unused, folder)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
