"""What runs in a subprocess: `python -m brokers.child COMMAND`. Figures are JSON on stdout."""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from usage import Usage

from brokers.app import noop, spec


@contextmanager
def published(count: int) -> Iterator[None]:
    """Says how fast `count` messages were published in the block, and what that cost."""
    server = Usage(spec.server)
    before, begun = _cpu(), time.perf_counter()
    yield
    seconds, cpu = time.perf_counter() - begun, _cpu() - before
    figures = {"per_s": count / seconds, "client_us": 1e6 * cpu / count}
    used = server.seconds()
    if used is not None:
        figures["server_us"] = 1e6 * used / count
    print(json.dumps(figures), flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def send(count: int) -> None:
    """Publishes one by one, unmeasured."""
    for _ in range(count):
        noop.apply_async()


def numbered(count: int) -> None:
    """Publishes so many, unmeasured; each says its number."""
    for number in range(1, count + 1):
        noop.apply_async((float(number),))


def publish(count: int, warm: int = 100) -> None:
    """Publishes one by one; the first open the connection and don't count."""
    send(warm)
    with published(count):
        send(count)


def threads(count: int, threads: int = 8, warm: int = 100) -> None:
    """Publishes one by one in each of several threads."""
    send(warm)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(send, [10] * threads))  # some brokers have a connection for each
        with published(count):
            list(pool.map(send, [count // threads] * threads))


def bulk(count: int, warm: int = 100) -> None:
    """Publishes in one transaction of the caller's."""
    from servers import sqlalchemy
    from sqlalchemy import create_engine

    import pgbeat

    engine = create_engine(sqlalchemy(spec.url.partition("+")[2]))

    def send_many(count: int) -> None:
        with engine.begin() as connection:
            pgbeat.in_transaction(connection).send_many(noop, [()] * count)

    send(1)  # who connects first makes the tables
    send_many(warm)
    with published(count):
        send_many(count)


def submit(count: int, warm: int = 100) -> None:
    """Submits jobs, each in a transaction of its own."""
    import pgbeat

    for _ in range(warm):
        pgbeat.submit(noop)
    with published(count):
        for _ in range(count):
            pgbeat.submit(noop)


def submit_bulk(count: int, warm: int = 100) -> None:
    """Submits jobs in one transaction of the caller's."""
    from servers import sqlalchemy
    from sqlalchemy import create_engine

    import pgbeat

    engine = create_engine(sqlalchemy(spec.url.partition("+")[2]))

    def submit_many(count: int) -> None:
        with engine.begin() as connection:
            for _ in range(count):
                pgbeat.submit(noop, connection=connection)

    send(1)  # who connects first makes the tables
    submit_many(warm)
    with published(count):
        submit_many(count)


def submit_many(count: int, warm: int = 1000) -> None:
    """Submits jobs by `submit_many`, in one transaction."""
    import pgbeat

    pgbeat.submit_many(noop.s() for _ in range(warm))
    with published(count):
        pgbeat.submit_many(noop.s() for _ in range(count))


def policy(count: int, warm: int = 100) -> None:
    """Publishes a task that has a policy one by one."""
    noop.pgbeat = {"tags": ["benchmark"]}
    publish(count, warm)


def paced(count: int, per_s: int, job_each: int = 0) -> None:
    """Publishes at a steady pace; every message says when it was sent.

    With `job_each`, one in so many is a job.
    """
    begun = time.time()
    for index in range(count):
        time.sleep(max(0.0, begun + index / per_s - time.time()))
        if job_each and index % job_each == 0:
            import pgbeat

            pgbeat.submit(noop, (time.time(),))
        else:
            noop.apply_async((time.time(),))


COMMANDS: dict[str, Callable[..., None]] = {
    "send": send,
    "numbered": numbered,
    "publish": publish,
    "threads": threads,
    "bulk": bulk,
    "submit": submit,
    "submit_bulk": submit_bulk,
    "submit_many": submit_many,
    "policy": policy,
    "paced": paced,
}

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    COMMANDS[command](*map(int, arguments))
