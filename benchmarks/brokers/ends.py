"""Ends a worker that holds messages, and waits until another one gets them."""

import signal
import time

from beats.measures import Figures
from beats.processes import ProcessError, wait_until

from brokers.contenders import Contender
from brokers.executions import Executions
from brokers.measures import PREFORK, START_LIMIT, Bench

#: The signal that ends the worker, and the seconds that its tasks take.
ENDS: dict[str, tuple[signal.Signals, float]] = {
    "kill -9": (signal.SIGKILL, 600.0),
    "SIGTERM": (signal.SIGTERM, 3.0),
}
#: Messages that a prefork worker of two processes holds: its prefetch.
HELD = 4 * PREFORK[1]


def end_worker(bench: Bench, contender: Contender, how: str, patience: float) -> Figures:
    """Ends a worker that holds messages, to be acknowledged late, while another one is idle.

    Returns how many tasks were held and not done at its end, how many of them the other worker
    began within `patience` seconds, and after how many seconds the first and the last of these.
    """
    number, holds = ENDS[how]
    spec = contender.spec.with_settings(task_acks_late=True)
    contender.reset()
    executions = Executions(spec.executions)
    bench.child(spec, "numbered", HELD)
    victim = bench.processes.worker(spec.with_settings(holds=holds), *PREFORK, "victim")
    if not wait_until(lambda: executions.count() == PREFORK[1], START_LIMIT):
        raise ProcessError("the worker did not begin its tasks")
    its_own = {execution.pid for execution in executions.read()}
    bench.processes.worker(spec, *PREFORK, "survivor")

    def survives() -> bool:
        bench.child(spec, "send", 1)
        return wait_until(lambda: _pids(executions) > its_own, 1)

    if not wait_until(survives, START_LIMIT):
        raise ProcessError("the other worker did not start")
    victim.send_signal(number)
    victim.wait(60)
    at_end = time.time()
    if number == signal.SIGKILL:
        bench.processes.kill(victim)  # its children, too
        done = {each.sent for each in executions.read() if each.pid not in its_own}
    else:
        done = {each.sent for each in executions.read()}
    held = {float(n) for n in range(1, HELD + 1)} - done

    def back() -> dict[float, float]:
        return {
            each.sent: each.at - at_end
            for each in executions.read()
            if each.at > at_end and each.sent in held
        }

    wait_until(lambda: len(back()) == len(held), patience, pause=0.05)
    times = back().values()
    figures: Figures = {"held": len(held), "back": len(times)}
    if times:
        figures["first_s"] = min(times)
    if len(times) < len(held):
        figures["limit_s"] = patience
    elif times:
        figures["last_s"] = max(times)
    return figures


def _pids(executions: Executions) -> set[int]:
    return {execution.pid for execution in executions.read()}
