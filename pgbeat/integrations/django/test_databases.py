"""Lets Django's test runner copy and drop test databases, where pgbeat has sessions."""

from collections.abc import Callable
from functools import wraps
from typing import Any

#: They belong to the tests' process, and to workers that it started.
_END = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'pgbeat%'"
)
_METHODS = ("clone_test_db", "destroy_test_db")


def release(wrapper: Any) -> None:
    """Ends pgbeat's sessions before tests copy or drop the connection's database."""
    creation = wrapper.creation
    for name in _METHODS:
        if name not in vars(creation):
            setattr(creation, name, _alone(wrapper, getattr(creation, name)))


def _alone(wrapper: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with wrapper.cursor() as cursor:
            cursor.execute(_END)
        return method(*args, **kwargs)

    return alone
