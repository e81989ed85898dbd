"""`/callbacks/CODE`: emits the event of a callback URL. Needs no token: the code is one."""

import json
import time
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from pgbeat.access.actors import Actor
from pgbeat.errors import InvalidInput
from pgbeat.jobs.verbs import callbacks, events
from pgbeat.web.api.bodies import Done, plain
from pgbeat.web.backend import TheBackend, WebBackend

#: Not of the API: third parties are given its URLs, and may add to their queries.
router = APIRouter(include_in_schema=False)

_ACTOR = Actor("callback", tasks=(), origin="api")


@router.post(callbacks.PATH + "{code}")
async def call_back(request: Request, backend: TheBackend, code: str) -> Done:
    """Emits the event, with the body as its value, unless there is one of that key.

    The signature is verified before the body is read, and without the database.
    """
    key = callbacks.verify(backend.settings, code, now=time.time())
    backend.rates.take(f"callback {key}")
    try:
        value = _value(await request.body())
    except ClientDisconnect:
        raise HTTPException(400, "the request ended before its body") from None
    is_new = await run_in_threadpool(_emit, backend, key, value)
    return Done(message="the event was emitted" if is_new else "the event was emitted before")


def _value(body: bytes) -> Any:
    try:
        return plain(json.loads(body)) if body.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("", "malformed", f"the body must be JSON: {error}") from None


def _emit(backend: WebBackend, key: str, value: Any) -> bool:
    with backend.unit(_ACTOR) as unit:
        return events.store(unit, key, value)
