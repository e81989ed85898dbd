"""The tables of `transport.py`: their titles, their lines, and whom pgbeat is compared with."""

from collections.abc import Mapping

from beats.report import Comparison, Row, against

_DRAIN = [
    Row("tasks/s", "per_s", "more"),
    Row("tasks/s, pauses of 0.2 s or more left out", "flowing_per_s", "more"),
    Row("worker CPU, µs a task", "worker_us"),
    Row("server CPU, µs a task", "server_us"),
]

TABLES: dict[str, tuple[str, list[Row]]] = {
    "publish": (
        "Publishing from one process, nobody consumes: {}",
        [
            Row("published/s, default settings", "per_s", "more"),
            Row("client CPU, µs a task", "client_us"),
            Row("server CPU, µs a task", "server_us"),
            Row("published/s, on disk at the return", "stored.per_s", "more"),
            Row("client CPU, µs a task", "stored.client_us"),
            Row("published/s, 8 threads, on disk at the return", "stored_threads.per_s", "more"),
            Row("published/s, not waiting for the disk", "unforced.per_s", "more"),
            Row("client CPU, µs a task", "unforced.client_us"),
            Row("published/s, 8 threads, not waiting", "unforced_threads.per_s", "more"),
            Row("published/s, one transaction (peers: one by one)", "bulk.per_s", "more"),
            Row("client CPU, µs a task", "bulk.client_us"),
        ],
    ),
    "drain": ("Draining no-ops: {}", _DRAIN),
    "compete": (
        "Competing for one queue: {}",
        [
            Row("tasks/s", "per_s", "more"),
            Row("tasks/s of one alone", "alone.per_s", "more"),
            Row("together : alone, without pauses", "ratio", "more"),
        ],
    ),
    "latency": (
        "From apply_async to the task's start: {}",
        [
            Row("p50, ms", "p50_ms"),
            Row("p95, ms", "p95_ms"),
            Row("p99, ms", "p99_ms"),
            Row("max, ms", "max_ms"),
        ],
    ),
    "idle": (
        "Nothing to do: {}",
        [Row("worker CPU, %", "worker_percent"), Row("server CPU, %", "server_percent")],
    ),
    "backlog": ("Draining no-ops out of a long queue: {}", _DRAIN),
    "held": (
        "Draining no-ops while a transaction is held open: {}",
        [
            Row("tasks/s, first seconds", "first.per_s", "more"),
            Row("tasks/s, last seconds", "last.per_s", "more"),
            Row("tasks/s, slowest window", "least_per_s", "more"),
            Row("kept, %", "kept_percent", "more"),
            Row("at a steady rate, most behind, ms", "most_waited_ms"),
            Row("worker CPU, µs a task, first seconds", "first.worker_us"),
            Row("worker CPU, µs a task, last seconds", "last.worker_us"),
            Row("server CPU, µs a task, first seconds", "first.server_us"),
            Row("server CPU, µs a task, last seconds", "last.server_us"),
            Row("a dump runs, % of the first seconds", "first.dumping_percent"),
            Row("a dump runs, % of the last seconds", "last.dumping_percent"),
        ],
    ),
    "ends": (
        "Tasks of a worker that ends, acks_late: {}",
        [
            Row("held: not begun, or killed", "held", ""),
            Row("begun in time", "begun", ""),
            Row("the first after, s", "first_s"),
            Row("the last after, s", "last_s"),
        ],
    ),
}

COMPARISONS: Mapping[str, Comparison] = {
    "pgbeat vs pgmq": against("pgmq"),
    "pgbeat vs redis": against("redis"),
    "pgbeat vs rabbitmq": against("rabbitmq"),
}
