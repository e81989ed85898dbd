"""`/console/lanes`: limits on what runs at once, who has their slots, and who waits and why."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from pgbeat import allotment, concurrency, db, lanes, occupancy
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.web.notes import note
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]
_SHOWN = 50


@router.get("/console/lanes")
def lanes_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """All lanes."""
    with backend.transaction() as connection:
        now = db.now(connection)
        rows = lanes.listing(connection, backend.namespace)
    return page(
        request, "lanes.html", caller=caller, backend=backend, here="lanes", now=now, rows=rows
    )


@router.get("/console/lanes/{name}")
def lane_page(request: Request, backend: TheBackend, caller: TheAdmin, name: Name) -> Response:
    """One lane."""
    with backend.transaction() as connection:
        now = db.now(connection)
        lane = lanes.get(connection, backend.namespace, name)
        holders = occupancy.holders(connection, lane, limit=_SHOWN)
        # A policy of the app's code may not be known here.
        is_known = lane.policy is None or lane.policy in concurrency.registered()
        line = occupancy.line(connection, lane, limit=_SHOWN) if is_known else None
    return page(
        request, "lane.html", caller=caller, backend=backend, here="lanes", now=now, lane=lane,
        holders=holders, line=line, shown=_SHOWN,
    )  # fmt: skip


@router.post("/console/lanes/{name}")
def change_lane(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, fields: Fields
) -> Response:
    """Pauses a lane, or has it go on: `do`."""
    verb = fields.get("do")
    if verb not in ("pause", "resume"):
        raise unknown(fields)
    change = lanes.pause if verb == "pause" else lanes.resume
    with backend.transaction() as connection:
        is_new = change(connection, backend.namespace, name)
        if is_new:
            before = {"paused": verb == "resume"}
            note(connection, backend, caller, verb, "lane", name, before,
                 {"paused": verb == "pause"})  # fmt: skip
    if is_new and verb == "resume":
        with backend.publishing() as publisher, backend.session() as connection:
            allotment.allot(connection, publisher, backend.namespace, name)
    said = "is paused; what has a slot goes on" if verb == "pause" else "goes on"
    return done(request, path("lanes", name), f"Lane '{name}' {said}.")
