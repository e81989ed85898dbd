"""Nautobot, which knows networks: jobs by its API, its own beat, and a job that we wrote."""

from urllib.parse import urlsplit

from tests.applications.common import Site, until
from tests.applications.django_apps import SLOW, Application, Mailbox, postgres

#: Nautobot's settings are a module that only its own command loads.
CELERY = ("nautobot-server", "celery")
#: Its tables are made from its models: its 384 migrations take many minutes.
#: Nautobot leaves `acks_late` off: without it, what a killed worker runs is lost with any broker.
CONFIGURATION = """
from nautobot.core.settings import *
ALLOWED_HOSTS = ["*"]
SECRET_KEY = "for one run of the tests" * 3
CELERY_TASK_ACKS_LATE = True
methods = {"__contains__": lambda *of: True, "__getitem__": lambda *of: None}
MIGRATION_MODULES = type("Unmigrated", (dict,), methods)()
"""
JOB = """
import time
from nautobot.apps.jobs import Job, register_jobs

class Slow(Job):
    class Meta:
        has_sensitive_variables = False

    def run(self):
        time.sleep(1)

register_jobs(Slow)
"""
SCRIPT = """
import nautobot
nautobot.setup()
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.urls import reverse
from rest_framework.test import APIClient
from nautobot.extras.models import Job, JobResult

user = get_user_model().objects.create_superuser("ada", "ada@example.org", "secret")
client = APIClient()
client.force_authenticate(user)

def start(name, data, **more):
    job = Job.objects.get(job_class_name=name)
    job.enabled = True
    job.save()
    url = reverse("extras-api:job-run", kwargs={"pk": job.pk})
    response = client.post(url, {"data": data, **more}, format="json")
    assert response.status_code == 201, response.content
    return job, response.json()

checks = {}
kind = ContentType.objects.get(app_label="extras", model="status")
_, answer = start("ExportObjectList", {"content_type": str(kind.pk), "export_format": "csv"})
deadline = time.monotonic() + 900
while True:
    result = JobResult.objects.get(pk=answer["job_result"]["id"])
    if result.status in ("SUCCESS", "FAILURE") or time.monotonic() > deadline:
        break
    time.sleep(0.5)
checks["a job by the API"] = result.status == "SUCCESS" and result.files.count() == 1
each_minute = {"name": "each minute", "interval": "custom", "crontab": "* * * * *"}
slow, _ = start("Slow", {}, schedule=each_minute)
for number in range(TASKS):
    JobResult.enqueue_job(slow, user, job_kwargs={})
"""
FINISHED = """
    SELECT FROM extras_jobresult WHERE name = 'Slow' AND status = 'SUCCESS'
       AND (scheduled_job_id IS NOT NULL) = %s
"""


def _settings(site: Site, database: str, mailbox: Mailbox) -> dict[str, str]:
    redis = urlsplit(site.redis_url)
    (site.folder / "jobs").mkdir(exist_ok=True)
    (site.folder / "jobs" / "slow.py").write_text(JOB)
    (site.folder / "nautobot_config.py").write_text(CONFIGURATION)
    return {
        "NAUTOBOT_ROOT": str(site.folder),
        **{f"NAUTOBOT_DB_{key}": value for key, value in postgres(database).items()},
        "NAUTOBOT_REDIS_HOST": str(redis.hostname),
        "NAUTOBOT_REDIS_PORT": str(redis.port),
    }


def _broker(database: str, redis: str) -> dict[str, str]:
    return {} if redis else {"NAUTOBOT_CELERY_BROKER_URL": f"pgbeat+{database}"}


def _finished(site: Site, database: str, mailbox: Mailbox) -> int:
    return len(site.sql(database, FINISHED, False))


def _own_beat(site: Site, database: str) -> dict[str, bool]:
    site.start("its own beat", *CELERY, "beat")
    until(lambda: site.sql(database, FINISHED, True), SLOW, "a job of Nautobot's own beat")
    site.kill("its own beat")
    return {"a scheduled job by Nautobot's own beat": True}


APPLICATION = Application(
    name="nautobot",
    packages=("nautobot",),
    settings=_settings,
    broker=_broker,
    migrate=("nautobot-server", "migrate", "--run-syncdb"),
    celery=CELERY,
    worker=(),
    script=SCRIPT,
    finished=_finished,
    keeps_redis=True,
    # Nautobot's app has no `beat_schedule`: its own beat runs the jobs that people schedule.
    scheduled="celery.backend_cleanup",
    own_beat=_own_beat,
)
