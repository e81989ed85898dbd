"""Tells the errbacks that Celery publishes from those that it calls in the process itself.

The latter take the request, the error and the traceback. In a transaction they would act before the
failure is visible to others, while its locks are held.
"""

from copy import copy
from functools import partial
from typing import Any

from celery import Celery
from celery.exceptions import NotRegistered
from celery.utils.functional import arity_greater


def separated(app: Celery, request: Any) -> tuple[Any, Any]:
    """Returns copies of a request: with the errbacks that are published, with those called here."""
    published, called = copy(request), copy(request)
    published.errbacks, called.errbacks = [], []
    for errback in request.errbacks or ():
        (called if _is_called_here(app, errback) else published).errbacks.append(errback)
    return published, called


def _is_called_here(app: Celery, errback: Any) -> bool:
    errback = app.signature(errback)
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False
    if header is None or isinstance(header, partial):
        return False
    # Celery 5.7 leaves out arguments that the signature has.
    greater = getattr(app.backend, "_errback_arity_greater", None)
    return bool(arity_greater(header, 1) if greater is None else greater(errback, 1))
