"""pretix, which sells tickets: an export, its periodic tasks, and mails."""

from tests.applications.common import Site
from tests.applications.django_apps import Application, Mailbox, postgres

SCRIPT = """
import io
import django
django.setup()
from datetime import datetime, timezone
from django.core.management import call_command
from django_scopes import scopes_disabled
from i18nfield.strings import LazyI18nString
from pretix.base.models import CachedFile, Event, Organizer, User
from pretix.base.services.export import export
from pretix.base.services.mail import mail

checks = {}
with scopes_disabled():
    user = User.objects.create_user("ada@example.org", "a-long-password-1")
    organizer = Organizer.objects.create(name="Concerts", slug="concerts")
    event = Event.objects.create(
        organizer=organizer, name="Opening", slug="opening", currency="EUR",
        date_from=datetime(2030, 1, 1, tzinfo=timezone.utc),
    )
    file = CachedFile.objects.create(filename="export.json", type="application/json")
    arguments = (event.pk, user.pk, None, None, str(file.pk), "json", {})
    result = export.apply_async(args=arguments, kwargs={"staff_session": True})
    checks["an export's file"] = result.get(timeout=900) == str(file.pk)
    file.refresh_from_db()
    checks["an export's file"] &= b"Opening" in file.file.read()
    output = io.StringIO()
    call_command("runperiodic", verbosity=2, stdout=output)
    checks["runperiodic"] = "Completed" in output.getvalue() and "ERROR" not in output.getvalue()
    for number in range(TASKS):
        text = LazyI18nString({"en": "See you there."})
        mail("bob@example.org", f"Reminder {number}", text, {}, organizer=organizer, locale="en")
"""
BEGUN = "SELECT FROM pretixbase_outgoingmail WHERE status IN ('inflight', 'sent')"


def _settings(site: Site, database: str, mailbox: Mailbox) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "pretix.settings",
        "PRETIX_PRETIX_DATADIR": str(site.folder),
        "PRETIX_DATABASE_BACKEND": "postgresql",
        **{f"PRETIX_DATABASE_{key}": value for key, value in postgres(database).items()},
        "PRETIX_MAIL_HOST": "127.0.0.1",
        "PRETIX_MAIL_PORT": mailbox.port,
    }


def _broker(database: str, redis: str) -> dict[str, str]:
    """Returns the lines of `pretix.cfg` that its documentation has for Redis, or those for us."""
    if not redis:
        return {f"PRETIX_CELERY_{role}": f"pgbeat+{database}" for role in ("BACKEND", "BROKER")}
    return {
        "PRETIX_REDIS_LOCATION": redis.format(0),
        "PRETIX_REDIS_SESSIONS": "true",
        "PRETIX_CELERY_BACKEND": redis.format(1),
        "PRETIX_CELERY_BROKER": redis.format(2),
    }


def _finished(site: Site, database: str, mailbox: Mailbox) -> int:
    """Returns how many mails a task has begun to send: with each broker, it ignores what is begun.

    What was being sent when the worker was killed, pretix sends again after an hour.
    """
    return len(site.sql(database, BEGUN))


APPLICATION = Application(
    name="pretix",
    packages=("pretix",),
    settings=_settings,
    broker=_broker,
    migrate=("python", "-m", "pretix", "migrate"),
    celery=("celery", "-A", "pretix.celery_app"),
    worker=(),
    script=SCRIPT,
    finished=_finished,
    keeps_redis=False,
    # pretix calls its periodic tasks by cron, so its app has no `beat_schedule`.
    scheduled="pretix.base.services.datasync.sync_all",
)
