"""One process of `pgbeat dev`: `python -m pgbeat.dev.member SOCKET APP ARGUMENT…`.

It imports the app with all its tasks, says so over the socket, waits for its turn, and runs Celery
with the arguments. So an app that can't be imported ends this process, and no other.
"""

import os
import socket
import sys
import traceback
from pathlib import Path

from celery import Celery
from celery.app.utils import find_app
from celery.platforms import signals

from pgbeat.integrations.django import follow_apps

#: What a process says when it has imported the app, and what it is told then.
READY, GO = b"ready", b"go"
#: Ends with this if the app can't be imported.
BROKEN = 3
_FORMATS = {
    "worker_log_format": "%(levelname)s %(message)s",
    "worker_task_log_format": "%(levelname)s %(task_name)s[%(task_id).8s] %(message)s",
}


def main() -> None:
    """Runs the process."""
    number, name, *arguments = sys.argv[1:]
    signals.ignore("SIGINT")  # a Ctrl-C is for the process that ends this one
    signals["SIGTERM"] = lambda *_: sys.exit(0)
    with socket.socket(fileno=int(number)) as turn:
        app = _imported(name)
        _log_for_people(app)
        turn.sendall(READY)
        if turn.recv(len(GO)) != GO:
            sys.exit(0)
    signals.reset("SIGINT", "SIGTERM")
    sys.argv = ["celery", "-A", name, *arguments]
    from celery.__main__ import main as run

    run()


def _imported(name: str) -> Celery:
    """Returns the app. Shows an error of its modules, and ends the process."""
    follow_apps()
    try:
        app = find_app(name)
        app.loader.import_default_modules()
        app.finalize()
    except Exception as error:
        _show(error)
        sys.exit(BROKEN)
    return app


def _show(error: Exception) -> None:
    """Prints an error with the project's part of its traceback, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if _is_projects(Path(frame.filename))]
    if not shown and not isinstance(error, SyntaxError):
        shown = list(frames)
    lines = traceback.format_list(shown) + traceback.format_exception_only(error)
    print("".join(lines), end="", file=sys.stderr, flush=True)


def _is_projects(file: Path) -> bool:
    return Path.cwd() in file.parents and "site-packages" not in file.parts


def _log_for_people(app: Celery) -> None:
    """Shortens the lines of the log, unless the app sets their format."""
    defaults = Celery(set_as_current=False).conf
    for setting, text in _FORMATS.items():
        if app.conf[setting] == defaults[setting]:
            app.conf[setting] = text
    if app.conf.worker_log_color is None:
        app.conf.worker_log_color = not os.environ.get("NO_COLOR")


if __name__ == "__main__":
    main()
