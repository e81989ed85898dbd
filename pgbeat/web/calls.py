"""A caller's request, as endpoints and pages take it."""

from contextlib import AbstractContextManager
from typing import Annotated

from fastapi import Depends, Request

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin, TheCaller, TheScraper, TheViewer


class Call:
    """A request with its caller, and what it is answered from."""

    def __init__(self, request: Request, backend: Backend, caller: Caller) -> None:
        self.request, self.backend, self.caller = request, backend, caller
        self.namespace = backend.namespace
        #: Masks the rows that are shown.
        self.redactor = backend.redactor(caller)

    def work(self) -> AbstractContextManager[UnitOfWork]:
        """Opens a unit of work for several changes."""
        return self.backend.work(self.caller)

    def unit(self) -> AbstractContextManager[UnitOfWork]:
        """Opens a unit of work for one change, which is committed at the end of the block."""
        return self.backend.unit(self.caller)


# What waits for nothing is async: other functions are called in a thread each, which takes longer.
async def _call(request: Request, backend: TheBackend, caller: TheCaller) -> Call:
    return Call(request, backend, caller)


async def _admin_call(request: Request, backend: TheBackend, caller: TheAdmin) -> Call:
    return Call(request, backend, caller)


async def _viewer_call(request: Request, backend: TheBackend, caller: TheViewer) -> Call:
    return Call(request, backend, caller)


async def _scraper_call(request: Request, backend: TheBackend, caller: TheScraper) -> Call:
    return Call(request, backend, caller)


#: A call as an endpoint's parameter: by any caller, by an administrator, by a caller who sees
#: everything, and by one who may read the metrics.
TheCall = Annotated[Call, Depends(_call)]
AdminCall = Annotated[Call, Depends(_admin_call)]
ViewerCall = Annotated[Call, Depends(_viewer_call)]
ScraperCall = Annotated[Call, Depends(_scraper_call)]
