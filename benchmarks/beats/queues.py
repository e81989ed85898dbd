"""What a broker holds: counting and emptying the queue that a beat publishes to."""

from abc import ABC, abstractmethod


class Queue(ABC):
    """The queue `celery` of one broker."""

    @abstractmethod
    def count(self) -> int:
        """Messages in the queue now, as another process sees them."""

    @abstractmethod
    def purge(self) -> None:
        """Removes all messages."""


class RedisQueue(Queue):
    """A list of Redis."""

    def __init__(self, url: str) -> None:
        import redis

        self._client = redis.Redis.from_url(url)

    def count(self) -> int:
        return int(str(self._client.llen("celery")))

    def purge(self) -> None:
        self._client.delete("celery")


class PostgresQueue(Queue):
    """The table `kombu_message`.

    Counts what came since the last purge by id: a look-up of the new rows, not a scan of all.
    """

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self._count = 0
        self._last = 0
        self._exists = False

    def count(self) -> int:
        if not self._exists:
            found = self._connection.execute("SELECT to_regclass('kombu_message')").fetchone()
            if found is None or found[0] is None:
                return 0
            self._exists = True
        row = self._connection.execute(
            "SELECT count(*), max(id) FROM kombu_message WHERE id > %s", (self._last,)
        ).fetchone()
        if row and row[0]:
            self._count += row[0]
            self._last = row[1]
        return self._count

    def purge(self) -> None:
        self.count()
        if self._exists:
            self._connection.execute("DELETE FROM kombu_message")
        self._count = 0
