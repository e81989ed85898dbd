"""Starts Flower beside a worker, and asks it."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.support.processes import ROOT, Process, Processes, free_port, until

WORKER = "flower@tests"
#: What each task of `APP` that was sent comes to, by what `send` calls it.
OUTCOMES = {
    "success": "SUCCESS",
    "failure": "FAILURE",
    "retried": "SUCCESS",
    "retry": "RETRY",
    "snoozed": "RETRY",
    "skipped": "REVOKED",
    "revoked": "REVOKED",
    "masked": "SUCCESS",
    "hidden": "FAILURE",
    "running": "STARTED",
}
APP = """
import os, time
import pgbeat
from celery import Celery
app = Celery("flower", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.worker_send_task_events = app.conf.task_send_sent_event = True
app.conf.pgbeat_track = os.environ.get("TRACK", "all")
app.conf.pgbeat_redact = {"flower.pay": ["card"], "flower.secret": "*"}

@app.task(name="flower.add", pgbeat={})
def add(x, y):
    return x + y

@app.task(name="flower.fail")
def fail(why):
    raise ValueError(why)

@app.task(name="flower.retry", bind=True, max_retries=9, pgbeat={})
def retry(self, times, countdown):
    if self.request.retries < times:
        raise self.retry(exc=ValueError("not yet"), countdown=countdown)

@app.task(name="flower.snooze", pgbeat={})
def snooze():
    raise pgbeat.Snooze("1 hour")

@app.task(name="flower.skip", pgbeat={})
def skip():
    raise pgbeat.Skip("nothing to do")

@app.task(name="flower.nap")
def nap(seconds):
    time.sleep(seconds)

@app.task(name="flower.pay")
def pay(amount, card, note=""):
    return card

@app.task(name="flower.secret")
def secret(word):
    raise ValueError(word)

def send():
    sent = {
        "success": add.delay(2, 3),
        "failure": fail.delay("no such thing"),
        "retried": retry.delay(2, 0.2),
        "retry": retry.delay(5, 3600),
        "snoozed": snooze.delay(),
        "skipped": skip.delay(),
        "masked": pay.delay(12, "4111", note="4112"),
        "hidden": secret.delay("swordfish"),
        "revoked": nap.delay(600),
        "running": nap.delay(600),
    }
    return {name: result.id for name, result in sent.items()}
"""


class Flower:
    """A Flower that is started, stopped and started again, and requests to it."""

    def __init__(self, processes: Processes, app: str) -> None:
        self.base = f"http://127.0.0.1:{free_port()}"
        self._processes, self._app = processes, app

    def start(self, *options: str, **env: str) -> Process:
        """Starts it, and waits until it answers."""
        port = self.base.rpartition(":")[2]
        options = ("flower", f"--port={port}", "--address=127.0.0.1", *options)
        env = {"FLOWER_UNAUTHENTICATED_API": "1", **env}
        self.process = self._processes.celery(*options, app=self._app, **env)
        until(lambda: self.is_up() or self.process.poll() is not None, 90)
        assert self.process.poll() is None, self.process.output
        return self.process

    def stop(self) -> None:
        """Ends it, as a service manager does."""
        self.process.terminate()
        self.process.wait(120)

    def ask(self, path: str, data: dict[str, Any] | bytes | None = None) -> tuple[int, str]:
        """Returns status and text; posts a mapping as JSON, bytes as a form."""
        body = json.dumps(data).encode() if isinstance(data, dict) else data
        request = urllib.request.Request(self.base + path, body)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str, data: dict[str, Any] | bytes | None = None) -> Any:
        """Returns the text of a successful answer."""
        status, body = self.ask(path, data)
        assert status == 200, f"{path}: {status} {body[:300]}"
        return json.loads(body)

    def is_up(self) -> bool:
        try:
            return self.ask("/healthcheck")[0] == 200
        except OSError:
            return False

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.json("/api/tasks")
        return found

    @property
    def states(self) -> dict[str, str]:
        return {task_id: task["state"] for task_id, task in self.tasks.items()}


def with_worker(processes: Processes, database: str) -> Flower:
    """Starts a worker; returns a Flower of the same app that is not started yet."""
    (processes.folder / "flower_app.py").write_text(APP)
    url = f"pgbeat+{database}"
    path = f"{processes.folder}:{ROOT}"
    processes.env |= {"BROKER": url, "BACKEND": url, "PYTHONPATH": path}
    worker = processes.celery("worker", "-c", "3", "-n", WORKER, "-l", "INFO", app="flower_app")
    worker.says("ready", 90)
    return Flower(processes, "flower_app")
