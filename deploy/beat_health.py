"""Exits with 0 if a beat of this host leads or stands by. For a container's healthcheck.

A beat that froze or lost the database no longer has a session.
"""

import socket
import sys

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.monitoring import beats


def main() -> int:
    """Returns the exit status."""
    settings = Settings.load()
    with connections.engine(settings.url, "pgbeat health").connect() as connection:
        status = beats.status(connection, settings)
    alive = [beat for beat in (status.leader, *status.standbys) if beat is not None]
    return 0 if any(beat.host == socket.gethostname() for beat in alive) else 1


if __name__ == "__main__":
    sys.exit(main())
