"""Ends a worker that holds messages, and waits until another one gets them."""

import signal
import time
from pathlib import Path

from beats.measures import Figures
from beats.processes import ProcessError, wait_until

from brokers.contenders import Contender
from brokers.executions import Executions
from brokers.measures import PREFORK, START_LIMIT, Bench

#: How long the worker's tasks take after SIGTERM, in seconds.
TASKS_TAKE = 3.0
#: The signal that ends the worker.
ENDS = {"kill -9": signal.SIGKILL, f"SIGTERM, tasks take {TASKS_TAKE:g} s more": signal.SIGTERM}
#: Messages that a prefork worker of two processes holds: its prefetch.
HELD = 4 * PREFORK[1]


def end_worker(bench: Bench, contender: Contender, how: str, patience: float) -> Figures:
    """Ends a worker that holds messages, to be acknowledged late, while another one is idle.

    Returns how many tasks it held that it has not begun, or can't end; how many of them began
    within `patience` seconds of the signal, and after how many the first and the last.
    """
    number, gate = ENDS[how], Path(contender.spec.folder) / "gate"
    gate.unlink(missing_ok=True)
    spec = contender.spec.with_settings(task_acks_late=True)
    contender.reset()
    executions = Executions(spec.executions)
    bench.child(spec, "numbered", HELD)
    victim = bench.processes.worker(spec.with_settings(gate=str(gate)), *PREFORK, "victim")
    if not wait_until(lambda: executions.count() == PREFORK[1], START_LIMIT):
        raise ProcessError("the worker did not begin its tasks")
    its_own = {each.pid for each in executions.read()}
    bench.processes.worker(spec, *PREFORK, "survivor")

    def survives() -> bool:
        bench.child(spec, "send", 1)
        return wait_until(lambda: {each.pid for each in executions.read()} > its_own, 1)

    if not wait_until(survives, START_LIMIT):
        raise ProcessError("the other worker did not start")
    ran, sent_at = executions.read(), time.time()
    if number == signal.SIGKILL:
        bench.processes.kill(victim)
        ran = [each for each in ran if each.pid not in its_own]
    else:
        victim.send_signal(number)
    held = {float(n) for n in range(1, HELD + 1)} - {each.sent for each in ran}

    def begun() -> dict[float, float]:
        later = [each for each in executions.read() if each.at > sent_at]
        return {each.sent: each.at - sent_at for each in later if each.sent in held}

    def all_began(limit: float) -> bool:
        return wait_until(lambda: len(begun()) == len(held), limit, pause=0.05)

    if not all_began(TASKS_TAKE):
        gate.touch()
        all_began(patience - TASKS_TAKE)
    times = begun().values()
    figures: Figures = {"held": len(held), "begun": len(times), "limit_s": patience}
    if times:
        figures["first_s"] = min(times)
    if len(times) == len(held):
        figures["last_s"] = max(times, default=0.0)
    return figures
