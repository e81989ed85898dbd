"""The app of the processes under test, on pgbeat's transport; its workers deliver webhooks."""

from tests.app import DATABASE
from tests.conftest import sqlalchemy_url
from tests.tracked_app import app

app.conf.broker_url = f"pgbeat+{sqlalchemy_url(DATABASE)}"
__all__ = ["app"]
