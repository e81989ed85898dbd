"""The embedded server of root, which runs as a user that others have, too."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

#: Becomes the server's user in another group, and tries to reach the server.
TRY = """
import os, pwd, socket, sys
sockets, pid = sys.argv[1:]
user = pwd.getpwnam("nobody")
os.setgroups([]), os.setgid(user.pw_gid), os.setuid(user.pw_uid)

def connect():
    socket.socket(socket.AF_UNIX).connect(f"{sockets}/.s.PGSQL.5432")

def replace():
    os.rename(f"{sockets}/.s.PGSQL.5432", f"{sockets}/other")

def data():
    os.listdir(f"/proc/{pid}/cwd")

for attempt in (connect, replace, data):
    try:
        attempt()
        print(attempt.__name__)
    except PermissionError:
        pass
print("done")
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or "PGBEAT_TEST_URL" in os.environ, reason="root's embedded server only"
)
def test_no_other_process_of_its_user_reaches_roots_server(server: str) -> None:
    with psycopg.connect(server) as connection:
        query = """
            SELECT current_setting('data_directory'), current_setting('unix_socket_directories'),
                   current_setting('dynamic_shared_memory_type')
        """
        [(data, sockets, memory)] = connection.execute(query).fetchall()
    assert memory == "mmap"  # else in files of /dev/shm that are the user's
    owner = Path(data).parent.stat()
    assert (owner.st_uid, owner.st_mode & 0o777) == (0, 0o710)
    pid = (Path(data) / "postmaster.pid").read_text().split()[0]
    command = [sys.executable, "-I", "-S", "-c", TRY, sockets, pid]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == ["done"]
