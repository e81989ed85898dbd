"""Defines actors, who make changes with certain permissions."""

import getpass
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

#: The interface by which a change is made, as the audit log records it.
Origin = Literal["cli", "api", "page", "program"]
#: The variables that `getpass` reads.
_LOGIN = ("LOGNAME", "USER", "LNAME", "USERNAME")


@dataclass(frozen=True)
class Actor:
    """A person or a program that makes changes."""

    #: As in `created_by` of jobs: `user:alice`.
    name: str
    is_admin: bool = False
    #: Globs of the names of tasks that the actor may run. `None` allows all, for the command line
    #: and programs, which could import the task.
    tasks: tuple[str, ...] | None = None
    #: `None` for a program, whose changes are not recorded in the audit log.
    origin: Origin | None = None
    #: Whether the actor sees what an administrator sees, without changing it.
    is_viewer: bool = False
    #: Whether the actor may change nothing at all.
    is_read_only: bool = False

    @property
    def is_restricted(self) -> bool:
        """Returns whether the actor is a user of the API or the console, and no administrator."""
        return self.tasks is not None and not self.is_admin

    @property
    def sees_all(self) -> bool:
        """Returns whether the actor sees everybody's jobs, and schedules, lanes and queues."""
        return self.is_admin or self.is_viewer


def is_name(text: str) -> bool:
    """Returns whether a person or program can be called that: 1 to 200 printable characters.

    Others, such as line breaks and those that turn the direction of writing, would change what a
    log or a terminal shows.
    """
    return 1 <= len(text) <= 200 and text.isprintable() and text == text.strip()


def user(*, is_admin: bool = False, is_viewer: bool = False, origin: Origin | None = None) -> Actor:
    """Returns the actor with the login name of this process."""
    name = next(filter(None, map(os.environ.get, _LOGIN)), None) or _login_name(os.getuid())
    return Actor(f"user:{name}", is_admin, origin=origin, is_viewer=is_viewer)


@lru_cache(maxsize=8)
def _login_name(uid: int) -> str:
    """Returns the login name that a file has, which takes a search."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(uid)
