"""What is held after a restore."""

from pgbeat.database.fence import Server
from pgbeat.monitoring.fences import Fence
from pgbeat.views import View


def fence(server: Server, last: Fence | None) -> View:
    """Returns the server, and the fence that was raised last."""
    return {
        "system_identifier": server.system,
        "timeline": server.timeline,
        "fence": None if last is None else last._asdict(),
    }
