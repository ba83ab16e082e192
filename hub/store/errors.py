"""What can go wrong with the store, in words that say what to do next.

Vendor errors are translated here, at the edge; the cause is kept. Callers retry `Unavailable`; reload and decide again on
`Conflict`; step down on `Stale`; everything else is for people.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
from sqlalchemy import exc as sqlalchemy_errors


class StoreError(Exception):
    """The store could not do this."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class Unavailable(StoreError):
    """The database is down, starting, overloaded or cut off. Nothing is known to be stored: try again."""


class Conflict(StoreError):
    """Somebody else was faster. Load again and decide again."""


class Stale(StoreError):
    """Another process leads now. Stop deciding; nothing of this transaction was stored."""


class NotFound(StoreError):
    """There is no such row."""


class ClusterExists(Conflict):
    """A cluster of this name is registered already."""


class DiskFull(StoreError):
    """The database's disk is full. Free some room; nothing that was accepted is lost."""


class SchemaTooNew(StoreError):
    """A newer release has changed this database's schema. Run that release, or restore a backup made before it."""


class ChangesPruned(StoreError):
    """Changes after this cursor are gone: take a new cursor with `tail`, then load everything anew."""


class EmbeddedError(StoreError):
    """The embedded Postgres could not be started."""


class DataDirInUse(EmbeddedError):
    """Another hub uses this data directory."""


def disk_full(path: Path, detail: str = "") -> DiskFull:
    free = shutil.disk_usage(path).free
    return DiskFull(f"the disk of {path} is full: {free:,} bytes free. Free some room and try again. {detail}".strip())


#: SQLSTATE, or its class, -> what it means to a caller. https://www.postgresql.org/docs/current/errcodes-appendix.html
_BY_SQLSTATE: dict[str, type[StoreError]] = {
    "08": Unavailable,  # connection exception
    "25006": Unavailable,  # read-only: we talk to a standby in the middle of a fail-over
    "40": Unavailable,  # serialization failure, deadlock
    "53100": DiskFull,
    "53": Unavailable,  # out of connections or memory
    "55P03": Unavailable,  # lock not available within lock_timeout
    "57": Unavailable,  # shutting down, starting up, cancelled by statement_timeout
    "0A000": Unavailable,  # cached plan after somebody else's migration: the next try prepares anew
    "23505": Conflict,
}


def _meaning(sqlstate: str) -> type[StoreError]:
    return _BY_SQLSTATE.get(sqlstate) or _BY_SQLSTATE.get(sqlstate[:2], StoreError)


def translate(error: Exception, data_dir: Path | None = None) -> StoreError:
    """The store's word for a vendor's error. `data_dir` is where an embedded server keeps its files."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlalchemy_errors.DBAPIError):
        original = error.orig or error
        sqlstate = getattr(original, "sqlstate", None) or ""
        if error.connection_invalidated and not sqlstate:
            return Unavailable(f"connection to the database lost: {original}")
        return _named(sqlstate, str(original), data_dir)
    if isinstance(error, asyncpg.PostgresError):
        return _named(getattr(error, "sqlstate", None) or "", str(error), data_dir)
    if isinstance(
        error, OSError | asyncpg.InterfaceError | sqlalchemy_errors.TimeoutError
    ):  # OSError: TimeoutError too
        return Unavailable(f"the database cannot be reached: {type(error).__name__}: {error}")
    return StoreError(f"{type(error).__name__}: {error}")


def _named(sqlstate: str, message: str, data_dir: Path | None) -> StoreError:
    kind = _meaning(sqlstate)
    if kind is DiskFull and data_dir is not None:
        return disk_full(data_dir, message)
    return kind(f"{message} (SQLSTATE {sqlstate})" if sqlstate else message)


@contextmanager
def translated(data_dir: Path | None = None) -> Iterator[None]:
    """Let no vendor error out of this block."""
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, sqlalchemy_errors.SQLAlchemyError) as error:
        raise translate(error, data_dir) from error
