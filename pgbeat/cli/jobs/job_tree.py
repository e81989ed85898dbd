"""`pgbeat jobs tree`: a canvas, a group or a chain of retries as one tree."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

import click
from rich.console import Console, ConsoleOptions
from rich.text import Text
from rich.tree import Tree as Drawing

from pgbeat.access.actors import Actor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker, find
from pgbeat.cli.terminal.options import option
from pgbeat.cli.terminal.printing import line, styled
from pgbeat.cli.terminal.tables import wrapped
from pgbeat.cli.terminal.target import Target
from pgbeat.jobs.explaining import tree
from pgbeat.jobs.explaining.tree import Node
from pgbeat.results import lookup

#: What kinds of nodes are called that are no jobs.
_KINDS = {"chain": "chain", "group": "group", "chord": "chord", "job_group": "group"}
_BEFORE = {"": "", "then": "then ", "body": "in the end ", "retry": "again "}


@click.command("tree")
@click.argument("job_id", metavar="ID")
@option(
    "--siblings",
    click.IntRange(1, tree.MOST),
    "Below each node, how many to show; the rest is counted.",
    default=tree.SIBLINGS,
)
@as_onlooker
def tree_command(target: Target, job_id: str, siblings: int, actor: Actor) -> None:
    """Show what a job is a part of: its canvas, group and retries, and what blocks what."""
    prefix = lookup.prefix_of(target.app.conf if target.app is not None else {})
    with target.reading() as (connection, now):
        job = find(connection, target, actor, job_id)
        redactor = target.redactor(actor)
        job_tree = tree.of_job(connection, redactor, job, prefix=prefix, siblings=siblings)
    if printing.is_json():
        printing.echo_json(asdict(job_tree))
        return
    drawing = Drawing(_Label(job_tree.root, now), guide_style="dim")
    _draw(drawing, job_tree.root, now)
    printing.show(drawing)
    if not job_tree.is_whole:
        printing.note("the tree has more than 10,000 jobs; some are left out.")


def _draw(drawing: Drawing, node: Node, now: datetime) -> None:
    for child in node.children:
        _draw(drawing.add(_Label(child, now)), child, now)


class _Label:
    """A node as it is drawn, in lines as long as the terminal has room for at its depth."""

    def __init__(self, node: Node, now: datetime) -> None:
        self._words = _label(node, now)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yields the words."""
        yield Text("\n").join(wrapped(self._words, max(1, options.max_width)))


def _label(node: Node, now: datetime) -> Text:
    """Returns a node's line, and lines for its error and for what it waits for."""
    label = Text(_BEFORE[node.relation], style="dim")
    if node.kind == "more":
        shown = ", ".join(f"{number:,} {state}" for state, number in node.counts.items())
        if node.state is not None:
            return label.append(f"and {shown}", "dim")
        return label.append(f"and {sum(node.counts.values()):,} more: {shown}", "dim")
    if node.kind == "hidden":
        return label.append("a job of others ", "dim").append_text(styled(str(node.state)))
    if node.kind in _KINDS:
        label.append(_KINDS[node.kind], "bold")
    name = line(node.name) or (f"task {node.id}" if node.kind == "task" else "")
    label.append(f" {name}" if node.kind in _KINDS and name else name)
    if node.state is not None:
        label.append(" ").append_text(styled(node.state))
    if node.counts:
        label.append(" " + ", ".join(f"{n:,} {state}" for state, n in node.counts.items()), "dim")
    if node.started_at is not None:
        label.append(f" {printing.span((node.finished_at or now) - node.started_at)}", "dim")
    if node.kind == "job":
        label.append(f" {str(node.id)[:8]}", "bold" if node.is_asked else "dim")
    if node.is_asked:
        label.append(" ←", "bold")
    if node.error is not None:
        label.append(f"\n{_short(node.error)}", "red")
    if node.where is not None and node.state != "running":
        label.append(f"\n{_short(node.where)}", "yellow")
    return label


def _short(words: str) -> str:
    text = line(words)
    return text if len(text) <= 200 else text[:199] + "…"
