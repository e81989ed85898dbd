"""Two Postgres servers under Patroni, with etcd, and HAProxy and PgBouncer before them."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import psycopg

from tests.support.pgbouncer import Pooler
from tests.support.processes import free_port, until
from tests.support.tcp_proxy import Proxy

#: Patroni's defaults, but for the lag, which some rows make.
_SHARED: dict[str, Any] = {
    "ttl": 30,
    "loop_wait": 10,
    "retry_timeout": 10,
    "maximum_lag_on_failover": 100_000_000,
    "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 200}},
}
_HAPROXY = """
defaults
  mode tcp
  retries 2
  timeout client 30m
  timeout connect 4s
  timeout server 30m
  timeout check 5s
listen primary
  bind 127.0.0.1:{port}
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions
"""


class Node:
    """A server and its Patroni, behind a network for its clients and one for the other server."""

    def __init__(self, name: str, folder: Path, etcd: int) -> None:
        self.name, self.port, self.rest = name, free_port(), free_port()
        self._folder = folder / name
        self._folder.mkdir()
        shutil.chown(self._folder, "postgres")
        dsn = f"postgresql://postgres:secret@127.0.0.1:{self.port}/postgres"
        self.clients, self.others = Proxy(dsn), Proxy(dsn)
        where = f"127.0.0.1:{self.rest}"
        config = {
            "scope": "failovers",
            "name": name,
            "restapi": {"listen": where, "connect_address": where},
            # Of etcd's interfaces the older: by the newer, Debian 12's Patroni 3.0.2 lets a server
            # that thaws take the lock back, and what the other had committed meanwhile is lost.
            "etcd": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": _SHARED,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{_port(self.others)}",
                "data_dir": str(self._folder / "data"),
                "bin_dir": str(max(Path("/usr/lib/postgresql").glob("*/bin"))),
                "pgpass": str(self._folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "secret"},
                    "replication": {"username": "replicator", "password": "secret"},
                },
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 md5",
                    "host replication all 127.0.0.1/32 md5",
                ],
                "parameters": {"unix_socket_directories": str(self._folder)},
            },
        }
        self._config = self._folder / "patroni.yml"
        self._config.write_text(json.dumps(config))  # which is YAML, too
        self.log = self._folder / "log"
        self.start()

    def start(self) -> None:
        """Starts Patroni, which starts Postgres."""
        with self.log.open("ab") as log:
            self._patroni = subprocess.Popen(
                ["/usr/bin/patroni", str(self._config)],
                stdout=log,
                stderr=log,
                user="postgres",
                group="postgres",
                extra_groups=[],
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder)},
                start_new_session=True,
            )

    def signal(self, sign: signal.Signals) -> None:
        """Sends a signal to Patroni and Postgres, all of their processes."""
        processes = [psutil.Process(self._patroni.pid)]
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            pid = int((self._folder / "data/postmaster.pid").read_text().split()[0])
            processes.append(psutil.Process(pid))
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
                for child in process.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.send_signal(sign)

    def kill(self) -> None:
        """Kills Patroni and Postgres, as a machine's end does."""
        self.signal(signal.SIGKILL)
        self._patroni.wait()

    def vanish(self) -> None:
        """Kills it so that nobody is told: what is sent to it is lost."""
        self.clients.cut()
        self.others.cut()
        self.kill()

    def revive(self) -> None:
        """Starts it again if it was killed, and mends its networks."""
        for network in (self.clients, self.others):
            network.mend()
        if self._patroni.poll() is not None:
            self.start()

    def connect(self, database: str = "postgres") -> "psycopg.Connection[Any]":
        """Connects to the server itself."""
        dsn = f"postgresql://postgres:secret@127.0.0.1:{self.port}/{database}?connect_timeout=3"
        return psycopg.connect(dsn, autocommit=True)


def _port(proxy: Proxy) -> int:
    return int(proxy.dsn.partition("?")[0].rpartition("/")[0].rpartition(":")[2])


class Cluster:
    """The servers, and what leads to the primary. Runs as root."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder, etcd, peers = folder, free_port(), free_port()
        client, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
        self._others = [
            self._run(
                *(
                    "etcd",
                    "--enable-v2=true",
                    "--data-dir",
                    str(folder / "etcd"),
                    "--log-level",
                    "error",
                ),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            )
        ]
        until(lambda: _answers(f"{client}/health"), 60, "etcd answers")
        self.nodes = [Node(name, folder, etcd) for name in ("one", "two")]
        self.balancer = free_port()
        config = folder / "haproxy.cfg"
        servers = "".join(
            f"  server {n.name} 127.0.0.1:{_port(n.clients)} maxconn 200 check port {n.rest}\n"
            for n in self.nodes
        )
        config.write_text(_HAPROXY.format(port=self.balancer) + servers)
        self._others.append(self._run("haproxy", "-db", "-f", str(config)))
        until(self.is_whole, 180, "Patroni has made the cluster")

    def _run(self, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{command[0]}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def states(self) -> dict[str, dict[str, Any]]:
        """What a Patroni says of each member."""
        for node in self.nodes:
            members = _answer(f"http://127.0.0.1:{node.rest}/cluster")
            if members is not None:
                return {member["name"]: member for member in members["members"]}
        return {}

    def is_whole(self, is_sync: bool | None = None) -> bool:
        """Whether one server leads and the other follows it, synchronously if that is asked."""
        states = self.states()
        roles = sorted(member["role"] for member in states.values())
        if len(roles) < 2 or len({member.get("timeline") for member in states.values()}) > 1:
            return False
        if any(member["state"] not in ("running", "streaming") for member in states.values()):
            return False
        return (
            roles
            in {
                None: (["leader", "replica"], ["leader", "sync_standby"]),
                True: (["leader", "sync_standby"],),
                False: (["leader", "replica"],),
            }[is_sync]
        )

    def primary(self) -> Node | None:
        """The server that leads and takes writes, if there is one."""
        for node in self.nodes:
            if _answers(f"http://127.0.0.1:{node.rest}/primary"):
                return node
        return None

    def other(self, node: Node) -> Node:
        return self.nodes[1 - self.nodes.index(node)]

    def replicate(self, *, is_sync: bool) -> None:
        """Has commits wait for the standby, or not."""
        self._tell("PATCH", "config", {"synchronous_mode": is_sync})
        until(lambda: self.is_whole(is_sync), 180, "the servers replicate")

    def switch_over(self) -> None:
        """Moves the primary in an orderly way."""
        before = self.primary()
        assert before is not None
        self._tell("POST", "switchover", {"leader": before.name})

    def _tell(self, method: str, path: str, body: dict[str, Any]) -> None:
        node = self.primary()
        assert node is not None
        _answer(f"http://127.0.0.1:{node.rest}/{path}", method, body, 120)

    def hosts(self, database: str) -> str:
        """A URL that names both servers."""
        places = "&".join(f"host=127.0.0.1:{_port(node.clients)}" for node in self.nodes)
        return f"postgresql://postgres:secret@/{database}?{places}"

    def balanced(self, database: str) -> str:
        """The URL of HAProxy."""
        return f"postgresql://postgres:secret@127.0.0.1:{self.balancer}/{database}"

    def pooler(self, database: str, folder: Path) -> Pooler:
        """Starts a PgBouncer in transaction mode that leads to the primary of now."""
        node = self.primary()
        assert node is not None
        return Pooler(
            self._direct(node, database), folder, default_pool_size=20, server_login_retry=1
        )

    def _direct(self, node: Node, database: str) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{_port(node.clients)}/{database}"

    def repoint(self, pooler: Pooler, database: str, stop: Callable[[], bool]) -> None:
        """Leads the pooler to the primary whenever another one leads, as a callback would."""
        last = self.primary()
        while not stop():
            now = self.primary()
            if now is not None and now is not last:
                pooler.lead_to(self._direct(now, database))
                last = now
            time.sleep(0.5)

    def close(self) -> None:
        """Ends everything."""
        for node in self.nodes:
            with suppress(psutil.NoSuchProcess):
                node.kill()
        for process in self._others:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(Request(url, method="GET"), timeout=2) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, URLError):
        return False


def _answer(url: str, method: str = "GET", body: Any = None, patience: float = 2) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310
    try:
        with urlopen(request, timeout=patience) as answer:  # noqa: S310
            text = answer.read()
    except (OSError, URLError):
        if body is not None:
            raise
        return None
    return json.loads(text) if text[:1] == b"{" else text
