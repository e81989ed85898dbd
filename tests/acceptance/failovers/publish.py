"""Publishes until a file is there, and notes outside of the database what was acknowledged."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pgbeat
from tests.chaos import app as chaos_app

_PAUSE = 0.3


def _publish(send: Callable[[], str], journal: int) -> None:
    while not (chaos_app.FOLDER / "stop").exists():
        asked = time.time()
        try:
            line = {"id": send()}
        except Exception as error:  # any: what counts is that it was not acknowledged
            line = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(journal, (json.dumps({**line, "asked": asked, "at": time.time()}) + "\n").encode())
        time.sleep(_PAUSE)


def _plain() -> str:
    return str(chaos_app.plain.apply_async(task_id=str(uuid4())).id)


def _job() -> str:
    return str(pgbeat.submit("chaos.work", app=chaos_app.app).id)


def main() -> None:
    """Publishes plain tasks and jobs, each in two threads."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    journal = os.open(Path(chaos_app.FOLDER) / "published", flags, 0o644)
    threads = [
        threading.Thread(target=_publish, args=(send, journal)) for send in (_plain, _job) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
