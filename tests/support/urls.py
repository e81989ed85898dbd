"""Writes a database's DSN as the URLs that Celery and SQLAlchemy want."""

from sqlalchemy.engine import URL

from pgbeat.config import postgres_url


def _url(dsn: str) -> URL:
    url = postgres_url(dsn)
    return url if url.password else url._replace(password=None)


def broker_url(dsn: str) -> str:
    """Returns the DSN as kombu's SQLAlchemy transport wants it."""
    return f"sqla+{sqlalchemy_url(dsn)}"


def sqlalchemy_url(dsn: str) -> str:
    """Returns the DSN with SQLAlchemy's name of the driver."""
    return _url(dsn).render_as_string(hide_password=False)
