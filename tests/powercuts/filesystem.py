"""A file system of this machine, cut off: much faster than a virtual machine.

`FS_IOC_SHUTDOWN`, by which xfstests cut the power, makes ext4 forget what was not synced, the end
of its journal included. What it has written is kept: there is no disk's cache to lose.
"""

import fcntl
import os
import random
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.servers import RabbitMQ
from tests.powercuts.machine import Host
from tests.support.processes import Process, until

#: What this needs in PATH, beside Debian's servers.
PROGRAMS = ("mke2fs", "mount", "setpriv")
_SHUTDOWN, _WITHOUT_FLUSH = 0x8004587D, struct.pack("I", 2)
_BYTES = 4 << 30
_STILL = {psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE}
_AS_POSTGRES = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")


def _is_still(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() in _STILL
    return True


class FileSystem(Host):
    """A file system with the data of a server, which is Debian's, of this machine."""

    def __init__(self, folder: Path, server: tuple[str, ...]) -> None:
        super().__init__(folder, server)
        folder.parent.chmod(0o711)  # for the server's user
        self._image, self._root = folder / "image", folder / "root"
        self._image.touch()
        os.truncate(self._image, _BYTES)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", self._image], check=True)
        self._root.mkdir()
        self._mount()
        self._env = dict(os.environ)
        makes = {"postgres": self._postgres, "redis": self._redis, "rabbitmq": self._rabbitmq}
        self._command = [*makes[server[0]](self._address[1]), *server[1:]]

    def _postgres(self, port: int) -> list[str]:
        data, programs = self._root / "data", max(Path("/usr/lib/postgresql").glob("*/bin"))
        subprocess.run(["install", "-d", "-o", "postgres", data], check=True)
        options = ("-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-D", data)
        subprocess.run(
            (*_AS_POSTGRES, programs / "initdb", *options), check=True, stdout=subprocess.DEVNULL
        )
        return [*_AS_POSTGRES, f"{programs}/postgres", "-D", str(data), "-p", str(port), "-k", ""]

    def _redis(self, port: int) -> list[str]:
        return ["redis-server", "--port", str(port), "--dir", str(self._root)]

    def _rabbitmq(self, port: int) -> list[str]:
        home = self._image.with_name("home")
        home.mkdir()
        command, self._env = RabbitMQ.command(home, self._root / "mnesia", port)
        return command

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self._root], check=True)

    def _start(self, log: Path) -> Process:
        if not self._root.is_mount():
            self._mount()
        return Process(self._command, log, self._env)

    def cut(self, kept: float, chance: random.Random) -> tuple[int, int]:
        # An fsync that is under way may succeed afterwards, in vain: nobody may learn that.
        tree = self._processes()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        until(lambda: all(map(_is_still, tree)), what="all processes stand still")
        root = os.open(self._root, os.O_RDONLY)
        fcntl.ioctl(root, _SHUTDOWN, _WITHOUT_FLUSH)
        os.close(root)
        self.close()
        return 0, 0

    def close(self) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        until(self._is_unmounted, what="the server's processes end")

    def _processes(self) -> list[psutil.Process]:
        """Returns the server's processes, the first one first: it starts the others."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def _is_unmounted(self) -> bool:
        if self._root.is_mount():
            subprocess.run(["umount", self._root], check=False, stderr=subprocess.DEVNULL)
        return not self._root.is_mount()
