"""Reads RedBeat's definitions and last runs from Redis."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pgbeat.errors import ConfigError, PgbeatError
from pgbeat.schedules.importers import imported, timetables
from pgbeat.schedules.importers.timetables import Unmovable, When

BEAT = "RedBeat"
#: RedBeat's default prefix of its keys (`redbeat_key_prefix`).
PREFIX = "redbeat:"
SCHEMES = ("redis", "rediss", "unix")
#: Definitions fetched in one round trip.
_BATCH = 1000
#: Seconds to wait for the server.
_PATIENCE = 10


class StoredEntry(NamedTuple):
    """A schedule as Redis has it: its key, and two documents of JSON."""

    key: str
    definition: str | None
    meta: str | None


class Contents(NamedTuple):
    """RedBeat's data in Redis."""

    definitions: list[StoredEntry]
    #: Names of the definitions that come from an app's `beat_schedule`.
    statics: set[str]
    #: Whether a running RedBeat holds the lock.
    is_running: bool


def read(url: str, prefix: str = PREFIX) -> Contents:
    """Returns what a `redis://`, `rediss://` or `unix://` URL holds. Raises `PgbeatError`."""
    try:
        import redis
    except ImportError:
        raise PgbeatError(
            "reading RedBeat's schedules needs the package redis, which is not installed; "
            "`pip install redis` where pgbeat is, and try again"
        ) from None
    try:
        client = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
        )
    except (ValueError, TypeError):
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(
            f"the URL of Redis can't be read; expected one of {schemes}, for example "
            "redis://:password@host:6379/0"
        ) from None
    try:
        with client:
            keys = client.zrange(f"{prefix}:schedule", 0, -1)
            definitions = []
            for start in range(0, len(keys), _BATCH):
                with client.pipeline(transaction=False) as pipe:
                    for key in keys[start : start + _BATCH]:
                        pipe.hmget(key, "definition", "meta")
                    entries = zip(keys[start : start + _BATCH], pipe.execute(), strict=True)
                definitions += [StoredEntry(key, *documents) for key, documents in entries]
            statics = set(client.smembers(f"{prefix}:statics"))
            return Contents(definitions, statics, bool(client.exists(f"{prefix}:lock")))
    except (redis.exceptions.RedisError, OSError) as error:
        raise PgbeatError(f"can't read {place(url)}: {error}") from None


def place(url: str) -> str:
    """Returns the URL for a sentence, without its secrets."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def inventory(where: str, contents: Contents, *, timezone: str | None = None) -> imported.Inventory:
    """Returns the definitions as arrivals. `timezone` is the app's, for RedBeat's crontabs."""
    result = imported.Inventory(BEAT, where)
    for key, definition, meta in contents.definitions:
        name = key
        try:
            fields = _decoded(definition)
            name = str(fields.get("name") or key)
            is_static = name in contents.statics
            result.arrivals.append(_arrival(name, fields, _decoded(meta), timezone, is_static))
        except Unmovable as error:
            result.refusals.append(imported.Unimportable(name, str(error)))
    if contents.is_running:
        result.notes.append("a RedBeat holds its lock now: stop it before pgbeat's beat starts")
    return result


def _decoded(document: str | None) -> dict[str, Any]:
    """Returns a document with its times. Raises `Unmovable`."""
    if document is None:
        return {}
    try:
        decoded = json.loads(document, object_hook=_with_times)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise Unmovable(f"its definition is no JSON of RedBeat's: {error}") from None
    if not isinstance(decoded, dict):
        raise Unmovable("its definition is no JSON object")
    return decoded


def _with_times(value: dict[str, Any]) -> Any:
    if value.get("__type__") != "datetime":
        return value
    parts = {key: part for key, part in value.items() if key not in ("__type__", "timezone")}
    return datetime(**parts, tzinfo=_zone(value.get("timezone", "UTC")))


def _zone(name: Any) -> tzinfo:
    """Returns a zone by its name, or by its offset in seconds."""
    if isinstance(name, int | float):
        return timezone(timedelta(seconds=name))
    return ZoneInfo(name)


def _arrival(
    name: str,
    fields: Mapping[str, Any],
    meta: Mapping[str, Any],
    app_timezone: str | None,
    is_static: bool,
) -> imported.Arrival:
    if not fields:
        raise Unmovable("its definition is gone; RedBeat drops it, too")
    task = imported.task_name(fields.get("task"))
    when, ends_at = _when(fields.get("schedule"), app_timezone)
    what = {
        "task": task,
        **imported.arguments(fields.get("args"), fields.get("kwargs")),
        **imported.publishing(fields.get("options") or {}),
    }
    if ends_at is not None:
        what["ends_at"] = ends_at
    last_run = meta.get("last_run_at")
    return imported.Arrival(
        origin=name,
        what=what,
        when=when,
        last_run=imported.aware(last_run) if isinstance(last_run, datetime) else None,
        run_count=int(meta.get("total_run_count") or 0),
        disabled_reason=None if fields.get("enabled", True) else imported.disabled_in(BEAT),
        from_code=is_static or task == imported.CLEANUP,
        remarks=when.remarks,
    )


def _when(schedule: Any, app_timezone: str | None) -> tuple[When, datetime | None]:
    """Returns when it is due, and until when. Raises `Unmovable`."""
    kind = schedule.get("__type__") if isinstance(schedule, dict) else None
    fields = {key: value for key, value in (schedule or {}).items() if key != "__type__"}
    if kind == "crontab":
        if app_timezone is None:
            raise Unmovable("its crontab is in the app's time zone; give -A APP or --timezone")
        return timetables.of_crontab(app_timezone, fields), None
    if kind == "interval":
        try:
            every = timedelta(seconds=float(fields["every"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Unmovable(f"its interval is {fields.get('every')!r}") from None
        relative = bool(fields.get("relative"))
        return timetables.of_interval(every, relative=relative, timezone=app_timezone), None
    if kind == "rrule":
        return timetables.of_rrule(fields, app_timezone)
    raise Unmovable(f"its schedule is {kind or schedule!r}, which RedBeat itself doesn't know")
