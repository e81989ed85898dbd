"""Running a benchmark: its cases one after another, what it says meanwhile, and its end."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

from beats.machine import Stolen
from beats.measures import Figures
from beats.processes import Processes
from beats.report import Results, number


class Named(Protocol):
    """A contender."""

    @property
    def name(self) -> str:
        """Its column in the tables."""


C = TypeVar("C", bound=Named)
#: A case: its measure, its title, and what to run for a contender.
Case = tuple[str, str, Callable[[C], Figures]]


def measure_all(
    cases: Iterable[Case[C]],
    contenders: Sequence[C],
    processes: Processes,
    say: Callable[[str], None],
    results: Results,
) -> None:
    """Runs every case for every contender, next to each other, into `results`."""
    for measure, title, run in cases:
        row = results.setdefault(measure, {}).setdefault(title, {})
        for contender in contenders:
            say(f"{measure}, {title}: {contender.name} …")
            stolen = Stolen()
            try:
                figures = run(contender)
            except Exception as error:  # the other figures are worth having all the same
                figures = {"error": str(error) or repr(error)}
            finally:
                processes.kill_all()
            row[contender.name] = {**figures, "stolen_percent": stolen.percent()}
            say(f"    {_brief(row[contender.name])}")


def _brief(figures: Figures) -> str:
    return ", ".join(
        f"{name} {number(value) if isinstance(value, int | float) else value}"
        for name, value in figures.items()
        if isinstance(value, int | float | str)
    )


def arguments_parser(
    description: str | None, measures: Sequence[str], contenders: str, known: Sequence[str]
) -> argparse.ArgumentParser:
    """Returns a parser for `--only`, `--json` and the option that names contenders."""
    parser = argparse.ArgumentParser(description=description)
    for flag, metavar, names in (("only", "MEASURES", measures), (contenders, "NAMES", known)):
        parser.add_argument(
            f"--{flag}", type=lambda text, names=names: names_of(text, names), metavar=metavar,
            default=list(names), help=f"of {','.join(names)}",
        )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser


def names_of(text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, in the order in which they are known.

    Raises what argparse shows to the user.
    """
    by_lower = {name.lower(): name for name in known}
    names = [by_lower.get(part.strip().lower(), "") for part in text.split(",")]
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
    return [name for name in known if name in names]


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A signal's handler: stops everything as Ctrl-C does."""
    raise KeyboardInterrupt


class Installable(Protocol):
    """A class of contenders."""

    def missing(self) -> str:
        """Returns what isn't there, in words; "" if all is."""


def available(
    names: Sequence[str], contenders: Mapping[str, Installable], say: Callable[[str], None]
) -> list[str]:
    """Returns those of the names that can be compared; says why the others are left out."""
    found = []
    for name in names:
        if missing := contenders[name].missing():
            say(f"{name}: skipped ({missing})")
        else:
            found.append(name)
    return found
