"""A caller's request, as endpoints and pages take it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.monitoring import replica
from pgbeat.web.backend import TheBackend, WebBackend
from pgbeat.web.identity import Caller, TheAdmin, TheCaller, TheScraper, TheViewer


class WebCall:
    """A request with its caller, and what it is answered from."""

    def __init__(self, request: Request, backend: WebBackend, caller: Caller) -> None:
        self.request, self.backend, self.caller = request, backend, caller
        self.namespace = backend.namespace
        #: Masks the rows that are shown.
        self.redactor = backend.redactor(caller)

    @contextmanager
    def listing(self) -> Iterator[Connection]:
        """Opens the transaction in which a list is read, and notes its lag for the response."""
        with self.backend.listing() as connection:
            self.request.state.read_lag = replica.behind(connection)
            yield connection

    def work(self) -> AbstractContextManager[UnitOfWork]:
        """Opens a unit of work for several changes."""
        return self.backend.work(self.caller)

    def unit(self) -> AbstractContextManager[UnitOfWork]:
        """Opens a unit of work for one change, which is committed at the end of the block."""
        return self.backend.unit(self.caller)


def by(kind: type[WebCall], who: Any) -> Any:
    """Returns the dependency on a call of this kind; `who` is the parameter of its caller."""

    # What waits for nothing is async: other functions are called in a thread each, for longer.
    async def call(request: Request, backend: TheBackend, caller: who) -> WebCall:
        return kind(request, backend, caller)

    return Depends(call)


#: A call as an endpoint's parameter: by any caller, by an administrator, by a viewer, and by a
#: reader of the metrics.
TheCall = Annotated[WebCall, by(WebCall, TheCaller)]
AdminCall = Annotated[WebCall, by(WebCall, TheAdmin)]
ViewerCall = Annotated[WebCall, by(WebCall, TheViewer)]
ScraperCall = Annotated[WebCall, by(WebCall, TheScraper)]
