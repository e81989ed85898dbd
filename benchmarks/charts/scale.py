"""Tells how much one Postgres carries, from the CPU time that a launch, a task and a job take."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

#: Cores of the server, and the share of their time that is planned for: the rest is for
#: checkpoints, vacuum, replicas and queries of people.
CORES, SHARE = (2, 8, 32), 0.7
#: The parts of a run that it needs.
PARTS = {"beat.launch", "transport.publish", "transport.drain", "jobs", "tracking"}
BEGIN, END = "<!-- benchmarks/all.py writes this table -->", "<!-- end of the table -->"


class Work(NamedTuple):
    """What one costs, in microseconds of CPU time, and the most that is possible besides."""

    name: str
    client_us: float
    server_us: float
    #: A second, however many cores there are.
    most: float | None = None

    def rate(self, cores: int) -> float:
        """How many a second a server with these cores carries."""
        rate = 1e6 * SHARE * cores / self.server_us
        return rate if self.most is None else min(rate, self.most)


def works(document: Mapping[str, Any]) -> Iterable[Work]:
    """Returns the kinds of work, from the figures of a run."""
    launches = document["beat.launch"]["results"]["launch"]
    plain = [by_name for title, by_name in launches.items() if title.endswith("schedules")]
    launch = plain[-1]["pgbeat"]
    published = _first(document["transport.publish"]["results"]["publish"])["pgbeat"]
    drains = document["transport.drain"]["results"]["drain"]
    run = _first({title: each for title, each in drains.items() if "prefork" in title})["pgbeat"]
    submits = document["jobs"]["results"]["pgbeat.submit, a transaction each"]
    tracked = document["tracking"]["results"]["prefork"]["launched"]
    yield Work("launches of schedules", launch["beat_us"], launch["server_us"], launch["per_s"])
    yield Work(
        "tasks, published one by one and run",
        published["client_us"] + run["worker_us"],
        published["server_us"] + run["server_us"],
    )
    yield Work(
        "jobs, submitted one by one, run and recorded",
        _median(submits, "client_us") + _median(tracked, "worker_us"),
        _median(submits, "server_us") + _median(tracked, "server_us"),
    )


def _first(cases: Mapping[str, Any]) -> Any:
    return next(iter(cases.values()))


def _median(rounds: list[Mapping[str, Any]], key: str) -> float:
    return median(each[key] for each in rounds)


def table(document: Mapping[str, Any]) -> str:
    """Returns the table in Markdown."""
    heads = [f"{cores} cores" for cores in CORES]
    lines = [
        f"| | CPU of clients, µs | CPU of the server, µs | {' | '.join(heads)} |",
        "|---|---:|---:|" + "---:|" * len(CORES),
    ]
    for work in works(document):
        rates = []
        for cores in CORES:
            rate = work.rate(cores)
            mark = " \\*" if rate == work.most else ""
            rates.append(f"{_rounded(rate)}{mark}")
        lines.append(
            f"| {work.name} | {_rounded(work.client_us)} | {_rounded(work.server_us)} | "
            f"{' | '.join(rates)} |"
        )
    return "\n".join(lines)


def _rounded(value: float) -> str:
    """Two digits: a calculation like this has no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def rewritten(page: str, document: Mapping[str, Any]) -> str:
    """Returns the page with the table of these figures."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(document)}\n\n{END}{after}"
