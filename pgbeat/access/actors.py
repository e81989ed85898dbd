"""Actors: who makes a change, with which permission, and by which way."""

import getpass
import os
from dataclasses import dataclass
from typing import Literal

#: By which way a change is made, as the audit log records it.
Origin = Literal["cli", "api", "page"]


@dataclass(frozen=True)
class Actor:
    """A person or a program that makes changes."""

    #: As in `created_by` of jobs: `user:alice`.
    name: str
    is_admin: bool = False
    #: Globs of the names of tasks that they may have run; `None`: any task, on the command line and
    #: in programs, which could import it.
    tasks: tuple[str, ...] | None = None
    #: `None` for a program, whose changes the audit log doesn't record.
    origin: Origin | None = None


def user(*, is_admin: bool = False, origin: Origin | None = None) -> Actor:
    """Returns the user that runs this process, by the login name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = str(os.getuid())
    return Actor(f"user:{name}", is_admin, origin=origin)
