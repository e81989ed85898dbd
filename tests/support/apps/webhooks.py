"""Puts the app of recorded executions on pgbeat's transport; its workers deliver webhooks."""

from tests.support.apps.basic import DATABASE
from tests.support.apps.recorded import app
from tests.support.databases import sqlalchemy_url

app.conf.broker_url = f"pgbeat+{sqlalchemy_url(DATABASE)}"
__all__ = ["app"]
