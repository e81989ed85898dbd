"""`/console/queues`: the broker's queues, and the messages that nobody could handle."""

from fastapi import APIRouter, Request, Response

from pgbeat.broker import control, dead_letters, queues
from pgbeat.config import delays_in_table
from pgbeat.database import connections
from pgbeat.errors import NotFound
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, unknown

router = APIRouter(route_class=PageRoute)

_DEAD = 50


@router.get("/console/queues")
def queues_page(
    request: Request, backend: TheBackend, caller: TheAdmin, dead: str = ""
) -> Response:
    """All queues, and the newest dead letters, of all or of one (`dead`)."""
    rows, letters, why = [], [], ""
    with backend.transaction() as connection:
        now = connections.now(connection)
        try:
            tables = backend.tables(connection)
        except NotFound as error:
            why = str(error)
        else:
            found = queues.all_queues(connection, tables)
            rows = [row for row in found if not row.is_internal]
            letters = dead_letters.find(connection, tables, queue=dead or None, limit=_DEAD + 1)
    return page(
        request, "queues.html", caller=caller, backend=backend, here="queues", now=now, rows=rows,
        letters=letters[:_DEAD], has_more=len(letters) > _DEAD, dead=dead, why=why,
        is_stock=not delays_in_table(backend.celery.conf),
    )  # fmt: skip


@router.post("/console/queues")
def change_queue(
    request: Request, backend: TheBackend, caller: TheAdmin, fields: Fields
) -> Response:
    """Pauses a queue (`queue`), has it go on, or purges it: `do`."""
    verb, name = fields.get("do", ""), fields.get("queue", "")
    if verb not in ("purge", "pause", "resume"):
        raise unknown(fields)
    with backend.unit(caller) as unit:
        tables = backend.tables(unit.connection)
        if verb == "purge":
            count = control.purge(unit, tables, name)
            said = f"Deleted {counted(count, 'message')} from queue '{name}'."
        elif verb == "pause":
            control.pause(unit, tables, name)
            said = f"Queue '{name}' is paused."
        else:
            control.resume(unit, tables, name)
            said = f"Queue '{name}' goes on."
    return done(request, path("queues"), said)


@router.post("/console/dead")
def change_dead(
    request: Request, backend: TheBackend, caller: TheAdmin, fields: Fields
) -> Response:
    """Puts a dead letter (`id`) back into its queue, or drops it: `do`."""
    verb, number = fields.get("do", ""), fields.get("id", "")
    if verb not in ("requeue", "drop"):
        raise unknown(fields)
    if not number.isascii() or not number.isdigit() or int(number) >= 2**63:
        raise NotFound(f"{number!r} is no dead letter")
    with backend.unit(caller) as unit:
        tables = backend.tables(unit.connection)
        chosen = control.choose(unit.connection, tables, ids=[int(number)])
        change = control.requeue if verb == "requeue" else control.drop
        count = change(unit, tables, chosen)
    if not count:
        said = "It can't be put back: its queue was deleted before."
    elif verb == "drop":
        said = "The message was dropped."
    else:
        said = f"The message is back in queue '{chosen[int(number)]}'."
    return done(request, path("queues"), said, is_good=bool(count))
