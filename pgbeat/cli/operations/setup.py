"""`pgbeat migrate`, `grant` and `demo`."""

import click
from sqlalchemy import Connection

from pgbeat.access import roles
from pgbeat.access.roles import PROFILES, Profile
from pgbeat.broker import installation, own_tables
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import FAILED, BadInput
from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError

_BROKER_IS_ABSENT = (
    "the broker's tables are not there, so nothing is granted on them: `pgbeat -A APP migrate` "
    "creates them; then run this again"
)


@click.command("migrate")
@option(
    "--check",
    FLAG,
    "Only check whether it is the newest, with nothing missing; exits with 1 if not.",
)
@option("--queue-table", "NAME", "Rename this table to kombu_queue before.")
@option("--message-table", "NAME", "Rename this one to kombu_message.")
@option("--sql", FLAG, "Print the SQL instead; without a database, that for an empty one.")
@on_target
def migrate_command(
    target: Target, check: bool, sql: bool, queue_table: str | None, message_table: str | None
) -> None:
    """Bring the database's schema to the newest version. Several may run at once.

    Functions, triggers, indexes and constraints that someone dropped or changed are made again.

    With the app, if its broker is the same database, this makes the broker's tables and queues too:
    kombu's transport doesn't expect two first users. Tables of kombu's SQLAlchemy transport that
    have other names than kombu_queue and kombu_message are renamed if you give their names; stop
    the programs that use them first.

    Its JSON has `before`, `current`, `newest`, `restored` and `renamed` (old names and new ones);
    with --check `current`, `newest`, `minimum`, `usable`, `missing`, and `pending`: the migrations
    to run, with the locks that each takes on tables that are in use.
    """
    if sql:
        if printing.is_json():
            raise click.UsageError("--sql and --json exclude each other")
        click.echo(_script(target).strip())
        return
    if check:
        with target.transaction() as connection:
            _check(connection)
        return

    names = {queue_table: "kombu_queue", message_table: "kombu_message"}
    rename = {old: new for old, new in names.items() if old is not None}
    done = installation.migrate(target.settings, target.author, target.registry, rename)
    before, after = done.before, done.after
    if printing.is_json():
        versions = {"before": before, "current": after, "newest": migrate.newest()}
        changes = {"restored": list(done.restored), "renamed": dict(done.renamed)}
        printing.echo_json(versions | changes)
        return
    if before == after:
        click.echo(f"The schema is at {after} already, {_place(after)}.")
    elif before is None:
        click.echo(f"The schema is installed, at version {after}.")
    else:
        click.echo(f"The schema went from version {before} to {after}.")
        printing.note("roles lack rights on what is new: run `pgbeat grant` again for each.")
    for old, new in done.renamed.items():
        click.echo(f"Table {old} is {new} now.")
    if done.restored:
        click.echo(f"Made again, since they were missing: {', '.join(done.restored)}.")
    if done.has_broker:
        click.echo("The broker's tables and queues are there.")


def _script(target: Target) -> str:
    """Returns the SQL that would run on the database, if one is given."""
    try:
        engine = target.engine
    except BadInput:
        return migrate.script()
    with engine.connect() as connection:
        schema = migrate.installed(connection)
    if schema is None:
        return migrate.script()
    migrate.refuse_foreign(schema)
    if schema.version >= migrate.newest():
        return f"-- The schema is at {schema.version}, {_place(schema.version)}."
    return migrate.script(schema.version)


def _check(connection: Connection) -> None:
    """Prints whether the schema is whole and of a usable version; exits with 1 if not."""
    newest = migrate.newest()
    try:
        migrate.check(connection)
        usable = True
    except SchemaError:
        usable = False
        if not printing.is_json():
            raise
    schema = migrate.installed(connection)
    current = schema.version if schema else None
    lacking = migrate.missing(connection, current) if usable and current else []
    pending = migrate.pending(connection)
    is_done = usable and current is not None and current >= newest and not lacking
    if printing.is_json():
        minimum = schema.oldest_program if schema else None
        versions = {"current": current, "newest": newest, "minimum": minimum}
        printing.echo_json(versions | {"usable": usable, "missing": lacking, "pending": pending})
    elif lacking:
        click.echo(
            f"The schema is at {current}, but lacks {', '.join(lacking)}; `pgbeat migrate` makes "
            "again what loses no rows."
        )
    elif current is not None and is_done:
        click.echo(f"The schema is at {current}, {_place(current)}.")
    else:
        whom = "" if str(current) >= migrate.OLDEST_OF_SCHEDULES else " for workers only"
        click.echo(
            f"The schema is at {current}, which works{whom}; `pgbeat migrate` makes it {newest}."
        )
        for one in pending:
            click.echo(f"{one.version}: {one.about}")
            for lock in one.locks:
                click.echo(f"  locks {lock.table} ({lock.rows:,} rows), {lock.mode}")
            if not one.locks:
                click.echo("  locks no table that is in use")
    if not is_done:
        raise click.exceptions.Exit(FAILED)


def _place(version: str) -> str:
    newest = migrate.newest()
    if version == newest:
        return "the newest version"
    return f"newer than the {newest} of this pgbeat, which may use it"


@click.command("grant")
@option("--role", "NAME", "The role of the database.", required=True)
@option("--profile", click.Choice(PROFILES), "What its programs do.", required=True)
@option("--apply", FLAG, "Change its rights; otherwise the SQL is printed.")
@on_target
def grant_command(target: Target, role: str, profile: Profile, apply: bool) -> None:
    """Give a role of the database the rights of a profile, and take away its others.

    Connect as the owner of the tables: the role that runs `pgbeat migrate`. Prints the SQL, or with
    --apply runs it in one transaction. Run it again after an upgrade. The profiles are beat,
    worker, web (API, console, command line), submit (apps that only send tasks and make jobs),
    readonly, and conditions (the role of SQL conditions).

    Its JSON has `role`, `profile`, `applied`, `changed`, `broker` (whether the broker's tables are
    there), `more` (what the role may do besides, by PUBLIC or another role) and `statements`.
    """
    with target.unit(dry_run=not apply) as unit:
        done = roles.grant(unit.connection, target.author, role, profile, apply=apply)
    if printing.is_json():
        shown = {"role": role, "profile": profile, "applied": apply, "changed": done.changed}
        more = {"broker": done.has_broker, "more": done.more, "statements": done.statements}
        printing.echo_json(shown | more)
        return
    if apply:
        state = "has now" if done.changed else "had already"
        click.echo(printing.harmless(f"Role {role} {state} the rights of profile {profile}."))
    else:
        click.echo(
            "\n".join(f"{statement};" for statement in ["BEGIN", *done.statements, "COMMIT"])
        )
    conf = None if target.app is None else target.app.conf
    if not done.has_broker and own_tables.are_expected(target.settings.url, conf):
        printing.note(_BROKER_IS_ABSENT)
    if done.more:
        printing.note(f"by PUBLIC or another role it also has {printing.shortened(done.more)}")


@click.command("demo")
@option("--seconds", RealRange(min=0, min_open=True), "End after this time.")
def demo_command(seconds: float | None) -> None:
    """Show pgbeat at work: its own Postgres, a worker, two beats, and the ticks as they come.

    Ctrl-C ends it. With --seconds it exits with 0 only if it saw launched, skipped and failed
    ticks and a completed job. Needs the extra pgbeat[embedded].
    """
    from pgbeat import demo

    raise click.exceptions.Exit(demo.run(seconds))
