"""Weblate, in which people translate: a component, mails, and its 40 periodic tasks.

Weblate compiles some of what it needs: Debian has the headers as liblz4-dev, libacl1-dev,
libxml2-dev, libxmlsec1-dev, libcairo2-dev, libgirepository1.0-dev, libffi-dev and libssl-dev. It
needs btree_gin and pg_trgm, which the embedded Postgres lacks: give another as `PGBEAT_TEST_URL`.
"""

import json
import secrets

from tests.applications.common import Site
from tests.applications.django_apps import Application, Mailbox, postgres, reminders

#: Weblate leaves `acks_late` off: without it, what a killed worker runs is lost with any broker.
SETTINGS = """
import json, os
from pathlib import Path
import weblate
text = Path(weblate.__file__).with_name("settings_example.py").read_text()
text = text.replace('SITE_DOMAIN = ""', 'SITE_DOMAIN = "localhost"')
text = text.replace("ENABLE_HTTPS = False", "ENABLE_HTTPS = True")
text = text.replace('"/home/weblate/data"', 'os.environ["WEBLATE_DATA"]')
exec(text)
DEBUG = False
SECRET_KEY = os.environ["WEBLATE_SECRET"]
DATABASES["default"] |= json.loads(os.environ["WEBLATE_DATABASE"])
CACHES["default"]["LOCATION"] = os.environ["WEBLATE_CACHE"]
EMAIL_HOST, EMAIL_PORT = "127.0.0.1", int(os.environ["WEBLATE_MAIL"])
CELERY_BROKER_URL = os.environ["CELERY_BROKER_URL"]
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_TASK_ACKS_LATE = True
"""
SCRIPT = """
import django
django.setup()
from weblate.accounts.tasks import send_mails
from weblate.lang.models import Language
from weblate.trans.models import Component, Project
from weblate.trans.tasks import create_component, create_project_backup, perform_load
from weblate.utils.celery import app, get_queue_stats
from weblate.utils.tasks import ping
from weblate.vcs.git import GitRepository

app.loader.import_default_modules()
app.finalize()
os.makedirs(os.path.join(os.environ["WEBLATE_DATA"], "home"), exist_ok=True)
GitRepository.global_setup()

checks = {"an answer of the worker": "version" in ping.delay().get(timeout=900)}
project = Project.objects.create(name="Shop", slug="shop", web="https://shop.example.org/")
english = Language.objects.get(code="en")
component = create_component.delay(
    project=project.pk, name="Texts", slug="texts", source_language=english.pk,
    file_format="po-mono", filemask="*.po", template="en.po", vcs="local", repo="local:",
    new_lang="add", manage_units=True, license="MIT", in_task=True,
).get(timeout=900)["component"]
perform_load.delay(component, force=True).get(timeout=900)
checks["a component"] = Component.objects.get(pk=component).translation_set.count() == 1
create_project_backup.delay(project.pk).get(timeout=900)
checks["a backup"] = any(file.endswith(".zip") for file in os.listdir(
    os.path.join(os.environ["WEBLATE_DATA"], "projectbackups", str(project.pk))
))
checks["the lengths of its queues"] = set(get_queue_stats()) >= {"celery", "notify"}
schedules = len(app.conf.beat_schedule)
for number in range(TASKS):
    mail = {"address": "bob@example.org", "subject": f"Reminder {number}", "body": "<p>Hi</p>",
            "headers": {}}
    send_mails.delay([mail])
"""


def _settings(site: Site, database: str, mailbox: Mailbox) -> dict[str, str]:
    (site.folder / "our_settings.py").write_text(SETTINGS)
    return {
        "DJANGO_SETTINGS_MODULE": "our_settings",
        "PYTHONPATH": str(site.folder),
        "WEBLATE_DATA": str(site.folder / "data" / postgres(database)["NAME"]),
        "WEBLATE_SECRET": secrets.token_hex(30),
        "WEBLATE_DATABASE": json.dumps(postgres(database)),
        "WEBLATE_CACHE": site.redis_url,
        "WEBLATE_MAIL": mailbox.port,
    }


def _broker(database: str, redis: str) -> dict[str, str]:
    return {"CELERY_BROKER_URL": redis.format(1) if redis else f"pgbeat+{database}"}


APPLICATION = Application(
    name="weblate",
    packages=("weblate[postgres]",),
    settings=_settings,
    broker=_broker,
    migrate=("weblate", "migrate"),
    celery=("celery", "-A", "weblate.utils"),
    worker=("-Q", "celery,notify,memory,translate,backup"),
    script=SCRIPT,
    finished=reminders,
    keeps_redis=True,
    python="3.12",
)
