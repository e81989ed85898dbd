"""Runs every benchmark and draws charts: `python benchmarks/all.py --help`.

All figures are in one file, written after each part. A part that failed, or in which the machine
was not quiet, can be run again by its name, or by `--missing`.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from charts import scale
from charts.drawings import draw
from quiet import Disturbance, Watch

HERE = Path(__file__).resolve().parent
#: The page with the table of what a server carries.
PAGE = HERE.parent / "docs/concepts/scale.md"


class Part(NamedTuple):
    """A benchmark, or some of its measures."""

    arguments: str
    #: For `--quick`.
    quick: str
    #: After so many it is stopped.
    minutes: float


_BEAT = "--sizes 1000 --repeats 3"
_TRANSPORT = "--publish 500 --bulk 5000 --tasks 1500 --latency 100 --idle 5 --settle 3"
_HELD = "--tasks 1500 --backlog 50000 --minutes 0.3"
_STEPS = "--steps 20 --events 20 --sleepers 200"
_RESULTS = "--latency 100 --tasks 1500 --members 200 --times 2 --waits 1000 --kills 2"

#: By name: the script, and where it has several measures that take long, one of them.
PARTS = {
    "beat.idle": Part("", _BEAT, 20),
    "beat.launch": Part("--sizes 1000,10000", _BEAT, 8),
    "beat.change": Part("--sizes 1000", _BEAT, 6),
    "beat.late": Part("--sizes 1000", _BEAT, 6),
    "beat.takeover": Part("--sizes 1000", _BEAT, 5),
    "transport.publish": Part("", _TRANSPORT, 4),
    "transport.drain": Part("", _TRANSPORT, 10),
    "transport.compete": Part("", _TRANSPORT, 6),
    "transport.latency": Part("", _TRANSPORT, 4),
    "transport.idle": Part("", _TRANSPORT, 4),
    "transport.ends": Part("", "--patience 10", 8),
    "transport.backlog": Part("", _HELD, 4),
    "transport.held": Part("", _HELD, 8),
    "results.latency": Part("", _RESULTS, 3),
    "results.drain": Part("", _RESULTS, 4),
    "results.rows": Part("", _RESULTS, 4),
    "results.group": Part("", _RESULTS, 4),
    "results.chord": Part("", _RESULTS, 4),
    "results.waits": Part("", _RESULTS, 12),
    "results.kills": Part("", _RESULTS, 20),
    "steps.step": Part("", _STEPS, 4),
    "steps.event": Part("", _STEPS, 4),
    "steps.sleep": Part("--contenders pgbeat", _STEPS, 4),
    "tracking": Part("", "--tasks 3000 --rounds 1 --pools prefork", 15),
    "jobs": Part("", "--tasks 1000 --rounds 1", 14),
    "webhooks": Part("", "--deliveries 6000", 4),
    "web": Part("", "--jobs 60000 --schedules 5000 --messages 2000 --times 3", 12),
    "streams": Part("", "--streams 1,20 --kinds job,read --changes 5 --idle 3", 12),
}
#: Minutes after which a part of `--quick` is stopped.
QUICK = 3.0


def run(name: str, is_quick: bool) -> dict[str, Any] | None:
    """Runs a part. Returns its figures with what disturbed it; `None` if it failed."""
    script, _, measure = name.partition(".")
    part = PARTS[name]
    arguments = [*(part.quick if is_quick else part.arguments).split()]
    if measure:
        arguments += ["--only", measure]
    minutes = QUICK if is_quick else part.minutes
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        argv = [sys.executable, str(HERE / f"{script}.py"), *arguments, "--json", str(figures)]
        watch, begun = Watch(), time.monotonic()
        code = _finish(subprocess.Popen(argv, start_new_session=True), 60 * minutes)
        found = watch.end()
        if code or not figures.exists():
            _say(f"{name}: failed" + (f", or took more than {minutes:g} minutes" * (code < 0)))
            return None
        document = json.loads(figures.read_text())
    seconds = time.monotonic() - begun
    _say(f"{name}: {seconds:.0f} s; {found}")
    return {**document, **_circumstances(found), "quick": is_quick, "seconds": round(seconds)}


def _circumstances(found: Disturbance) -> dict[str, Any]:
    return {
        "quiet": found.is_quiet,
        "stolen_percent": found.stolen,
        "others_percent": round(found.others, 1),
    }


def _finish(process: subprocess.Popen[bytes], limit: float) -> int:
    """Waits for a part, and stops it at its limit or at Ctrl-C, with all that it started."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it stops its servers
            process.wait(60)


def chosen(options: argparse.Namespace, done: dict[str, Any]) -> list[str]:
    """The parts to run."""
    if options.draw:
        return []
    wanted = options.only.split(",") if options.only else list(PARTS)
    names = [name for name in PARTS if name in wanted or name.partition(".")[0] in wanted]
    unknown = {
        each for each in wanted if not any(n == each or n.startswith(f"{each}.") for n in PARTS)
    }
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.missing:
        return [name for name in names if not done.get(name, {}).get("quiet")]
    return names


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    minutes = sum(part.minutes for part in PARTS.values())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"Takes about an hour and a half, and never more than {minutes:.0f} minutes; "
        f"with --quick about 20 minutes, and never more than {QUICK * len(PARTS):.0f}. "
        f"Parts: {', '.join(PARTS)}.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: for trying it out")
    parser.add_argument("--only", metavar="PARTS", help="such as beat.launch,transport")
    parser.add_argument(
        "--missing", action="store_true", help="only parts of which FILE has no quiet run"
    )
    parser.add_argument(
        "--draw", action="store_true", help="only draw charts and write the table of FILE"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=HERE / "figures.json",
        help="all figures: other parts are kept; benchmarks/figures.json",
    )
    parser.add_argument(
        "--charts",
        type=Path,
        metavar="FOLDER",
        default=HERE.parent / "docs/assets/figures",
        help="where to draw; docs/assets/figures",
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the parts; 1 if one failed, 2 if the machine was not quiet in one."""
    options = parse(sys.argv[1:])
    document: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    failed, disturbed = [], []
    for name in chosen(options, document):
        figures = run(name, options.quick)
        if figures is None:
            failed.append(name)
            continue
        if not figures["quiet"]:
            disturbed.append(name)
        document[name] = figures
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    for path in draw(document, options.charts):
        _say(f"drew {path}")
    if PAGE.exists() and document.keys() >= scale.PARTS:
        PAGE.write_text(scale.rewritten(PAGE.read_text(), document))
        _say(f"wrote the table of {PAGE}")
    if failed:
        _say(f"failed: {', '.join(failed)}")
    if disturbed:
        _say(f"not a quiet run: {', '.join(disturbed)}; run them again with --missing")
    return 1 if failed else 2 if disturbed else 0


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
