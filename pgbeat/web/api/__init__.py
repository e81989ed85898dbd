"""The REST API: a module for each noun, and in this folder what they share."""

from fastapi import APIRouter, Depends
from starlette.routing import Match
from starlette.types import Scope

from pgbeat.web.api import broker, jobs, operations, schedules
from pgbeat.web.api.queries import only_known
from pgbeat.web.backend import path_below_root


class _Api(APIRouter):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tries none of the many endpoints for a page of the console, whose viewers are many."""
        if path_below_root(scope).startswith("/console/"):
            return Match.NONE, {}
        return super().matches(scope)


router = _Api(dependencies=[Depends(only_known)])
for _noun in (*schedules.MODULES, *jobs.MODULES, *broker.MODULES, *operations.MODULES):
    router.include_router(_noun.router)
