"""What a server runs on, with a power switch; a virtual machine, whose image is made once."""

import os
import random
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.servers import free_ports
from tests.powercuts.disk import BLOCK, Disk
from tests.support.processes import Process

#: Seconds within which a server must answer: those of an emulated machine on a busy one.
_BOOT = 1200.0
#: What this needs in PATH.
PROGRAMS = ("mke2fs", "mmdebstrap", "qemu-system-x86_64")


class _Server(NamedTuple):
    """Where a server listens in the guest, what it is asked, and how an answer begins."""

    port: int
    greeting: bytes
    answer: bytes


_STARTUP = b"\0\3\0\0user\0postgres\0\0"
_SERVERS = {
    "postgres": _Server(5432, struct.pack(">I", 4 + len(_STARTUP)) + _STARTUP, b"R"),
    "redis": _Server(6379, b"PING\r\n", b"+"),
    "rabbitmq": _Server(5672, b"AMQP\0\0\x09\1", b"\1"),
}


class NotStarted(Exception):
    """The server doesn't start on what the power cut has left."""


def image(folder: Path) -> Path:
    """Returns the folder with the guest's disk and kernel; makes it if it isn't there."""
    if not (folder / "disk").exists():
        print(f"making the guest in {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([Path(__file__).with_name("build.sh"), folder], check=True)
    return folder


class Host(ABC):
    """What a server, named with its arguments, runs on. It can be reached at `place`."""

    def __init__(self, folder: Path, server: tuple[str, ...]) -> None:
        self._folder, self._boots = folder, 0
        self._server, (port,) = _SERVERS[server[0]], free_ports(1)
        self._address = ("127.0.0.1", port)
        self.place = f"127.0.0.1:{port}"

    @abstractmethod
    def _start(self, log: Path) -> Process:
        """Switches the power on."""

    @abstractmethod
    def cut(self, kept: float, chance: random.Random) -> tuple[int, int]:
        """Cuts the power; returns how many blocks, not flushed, the disk lost and kept."""

    @abstractmethod
    def close(self) -> None:
        """Ends it for good."""

    def boot(self) -> float:
        """Switches the power on; returns after how many seconds the server answers."""
        began = time.monotonic()
        self._boots += 1
        log = self._folder / f"boot-{self._boots}.log"
        self._process = self._start(log)
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > began + _BOOT:
                raise NotStarted(f"{log}: {self._process.output[-500:]}")
            time.sleep(0.5)
        return time.monotonic() - began

    def _answers(self) -> bool:
        with socket.socket() as probe, suppress(OSError):  # QEMU accepts before anybody listens
            probe.settimeout(5)
            probe.connect(self._address)
            probe.sendall(self._server.greeting)
            return probe.recv(1) == self._server.answer
        return False


class Machine(Host):
    """A virtual machine, the disk of which forgets what was not flushed."""

    def __init__(
        self, image: Path, folder: Path, server: tuple[str, ...], accelerator: str
    ) -> None:
        super().__init__(folder, server)
        subprocess.run(["cp", "--sparse=auto", image / "disk", folder / "disk"], check=True)
        self._disk = Disk(folder / "disk", folder / "nbd")
        kernel = f"root=/dev/vda rw init=/sbin/guest serve={','.join(server)} console=ttyS0 quiet"
        network = f"user,id=net,hostfwd=tcp:{self.place}-:{self._server.port}"
        block = f"logical_block_size={BLOCK},physical_block_size={BLOCK}"
        # Emulated on a busy machine, the timer may fail the kernel's check.
        kernel += " net.ifnames=0 panic=-1 mitigations=off no_timer_check"
        # QEMU caches nothing of an NBD disk; it passes on each flush of the guest's.
        self._command = [
            *(
                "qemu-system-x86_64",
                "-accel",
                accelerator,
                "-cpu",
                "max",
                "-m",
                "1024",
                "-smp",
                "2",
            ),
            *("-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"),
            *("-kernel", f"{image}/vmlinuz", "-initrd", f"{image}/initrd"),
            *("-append", kernel),
            *("-drive", f"if=none,id=disk,format=raw,file=nbd:unix:{folder / 'nbd'}"),
            *("-device", f"virtio-blk-pci,drive=disk,{block}"),
            *("-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="),
        ]

    def _start(self, log: Path) -> Process:
        self._disk.plug_in()
        return Process(self._command, log, dict(os.environ))

    def cut(self, kept: float, chance: random.Random) -> tuple[int, int]:
        self._process.kill_group()
        return self._disk.cut(kept, chance)

    def close(self) -> None:
        self._process.kill_group()
        self._disk.close()
