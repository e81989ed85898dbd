"""The app of the processes under test, on pgbeat's transport; its workers deliver webhooks."""

from tests.support.apps.basic import DATABASE
from tests.conftest import sqlalchemy_url
from tests.support.apps.recorded import app

app.conf.broker_url = f"pgbeat+{sqlalchemy_url(DATABASE)}"
__all__ = ["app"]
