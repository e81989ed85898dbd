"""Adds pgbeat's queues, and links to jobs, to Flower.

Its Broker page knows the queues of `pgbeat+postgresql://`, and a task's page links to its job in
the console, if `pgbeat_web_url` says where that is. Everything else works as it is.

Flower has settings for neither: brokers are chosen by their class, and what `format_task` returns
is shown as text, links too.
"""

import asyncio
import html
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from celery import Celery
from flower import urls
from flower.utils.broker import Broker, BrokerBase
from flower.views.tasks import TaskView
from sqlalchemy.exc import SQLAlchemyError
from tornado import web

from pgbeat.broker import queues
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.errors import NotFound, PgbeatError
from pgbeat.jobs.rows import model as jobs

#: Schemes of the broker's URL that are pgbeat's.
_PREFIX = "pgbeat+"
_stock = Broker.__new__


class PostgresBroker(BrokerBase):
    """The queues, read from the broker's tables."""

    def __init__(
        self,
        broker_url: str,
        *args: Any,
        broker_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        options = broker_options or {}
        self._engine = connections.engine(
            postgres_url(broker_url), "pgbeat flower", options.get("connect_args")
        )

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Returns the numbers of the queues of these names, as Flower shows them."""
        return await asyncio.get_running_loop().run_in_executor(None, self._read, set(names))

    def _read(self, names: set[str]) -> list[dict[str, Any]]:
        with self._engine.connect() as connection:
            rows = queues.all_queues(connection)
        return [
            {
                "name": queue.name,
                "messages": queue.waiting + queue.claimed,
                "messages_ready": queue.waiting,
                "messages_unacknowledged": queue.claimed,
                "consumers": queue.consumers,
            }
            for queue in rows
            if queue.name in names
        ]


def _broker(cls: type, broker_url: str, *args: Any, **kwargs: Any) -> Any:
    if broker_url.startswith(_PREFIX):
        return PostgresBroker(broker_url, *args, **kwargs)
    return _stock(cls, broker_url, *args, **kwargs)


Broker.__new__ = _broker


class Console:
    """The console's pages of jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = connections.engine(settings.url, "pgbeat flower")

    def page_of(self, task_id: str) -> str | None:
        """Returns the URL of a task's job; `None` for a task that is not a job.

        If the database can't be reached, the task is taken for a job.
        """
        try:
            with self._engine.connect() as connection:
                jobs.get(connection, task_id, namespace=self._settings.namespace)
        except NotFound:
            return None
        except SQLAlchemyError:
            pass
        return f"{self._settings.web_url.rstrip('/')}/console/jobs/{quote(task_id, safe='')}"


@lru_cache(maxsize=1)
def _console(app: Celery) -> Console | None:
    """Returns the console, if the settings say where it is."""
    try:
        settings = Settings.load(app.conf)
    except PgbeatError:
        return None
    return Console(settings) if settings.web_url else None


class TaskPage(TaskView):
    """Flower's page of a task, with a link to the job."""

    _job: str | None = None

    @web.authenticated
    async def get(self, task_id: str) -> None:
        """Shows the task."""
        console = _console(self.application.capp)
        if console is not None:
            loop = asyncio.get_running_loop()
            self._job = await loop.run_in_executor(None, console.page_of, task_id)
        super().get(task_id)

    def render_string(self, template_name: str, **values: Any) -> bytes:
        """Renders the page as Flower does, with the link after the task's id.

        Flower's own script looks for that id.
        """
        page: bytes = super().render_string(template_name, **values)
        if self._job is None or template_name != "task.html":
            return page
        link = f'<p><a href="{html.escape(self._job)}">This job in pgbeat</a></p>'.encode()
        return _TASK_ID.sub(lambda match: match[0] + link, page, count=1)


_TASK_ID = re.compile(rb'<p id="taskid"[^>]*>[^<]*</p>')


def _with_links(handler: Any) -> Any:
    if isinstance(handler, web.url) and handler.name == "task":
        return web.url(handler.regex.pattern, TaskPage, handler.kwargs, handler.name)
    return handler


urls.handlers[:] = map(_with_links, urls.handlers)
