"""Django's own tests of pgbeat's pages of the admin site."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from celery import current_app
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, TransactionTestCase
from django.test.utils import CaptureQueriesContext

import pgbeat
from pgbeat.integrations.django import models
from pgbeat.integrations.django.admin import pages
from tests.support.django_project.shop.tasks import ship

TASK = ship.name


def rows(query: str, *values: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall()) if cursor.description else []


class Pages(TransactionTestCase):
    """Tests as the superuser ada, with real commits."""

    def setUp(self) -> None:
        for table in ("schedules", "lanes", "unfinished_jobs", "ended_jobs", "ticks", "audit"):
            rows(f"DELETE FROM pgbeat.{table}")
        rows("DELETE FROM kombu_message")
        self.ada = User.objects.create_superuser("ada")
        self.client.force_login(self.ada)

    def page(self, path: str, **query: Any) -> str:
        """Returns a page below pgbeat's."""
        answer = self.client.get(f"/admin/pgbeat/{path}", query)
        assert answer.status_code == 200, answer.status_code
        return str(answer.content.decode())

    def post(self, path: str, client: Client | None = None, **fields: Any) -> str:
        """Posts a form below pgbeat's pages, and returns the page that follows."""
        answer = (client or self.client).post(f"/admin/pgbeat/{path}", fields, follow=True)
        assert answer.status_code == 200, answer.status_code
        return str(answer.content.decode())

    def act(self, path: str, action: str, *keys: Any, client: Client | None = None) -> str:
        """Does an action with rows of a list, and returns the list after it."""
        chosen = [str(key) for key in keys]
        return self.post(f"{path}/", client, action=action, _selected_action=chosen)

    def add(self, **fields: Any) -> str:
        """Posts the form of a new schedule."""
        given = {"name": "nightly", "task": TASK, "args": "[1]", "cron": "0 2 * * *", **fields}
        return self.post("schedule/add/", **START | given)


#: What the form of a new schedule holds at first.
START = {
    "initial-args": "[]",
    "kwargs": "{}",
    "initial-kwargs": "{}",
    "options": "{}",
    "initial-options": "{}",
    "job_policy": "{}",
    "initial-job_policy": "{}",
    "labels": "{}",
    "initial-labels": "{}",
    "metadata": "{}",
    "initial-metadata": "{}",
    "launcher": "GenericLauncher",
    "after_outcome": "completed",
    "after_match": "all",
    "overlap": "allow",
    "catch_up": "latest",
    "catch_up_limit": "100",
    "retry_factor": "2.0",
}


class Schedules(Pages):
    def test_a_schedule_is_added_and_recorded_as_the_users(self) -> None:
        said = self.add(every="", grace="15 min", job_policy='{"max_attempts": 3}')
        assert "was added successfully" in said, said
        [found] = rows(
            "SELECT name, cron, grace, job_policy, source, max_retries, jitter "
            "FROM pgbeat.schedules"
        )
        assert found[:3] == ("nightly", "0 2 * * *", timedelta(minutes=15))
        assert json.loads(found[3])["max_attempts"] == 3
        assert found[4:] == ("page", 5, timedelta(0))
        assert rows("SELECT actor, verb, subject FROM pgbeat.audit") == [
            ("user:ada", "create", "nightly")
        ]
        assert "nightly" in self.page("schedule/")

    def test_all_mistakes_are_shown_at_their_fields_and_nothing_is_written(self) -> None:
        wrong = {
            "cron": ("61 * * * *", "61"),
            "task": ("shop.nope", "shop.nope"),
            "grace": ("soon", "soon"),
            "max_runs": ("0", "max_runs"),
            "job_policy": ('{"lan": 1}', "lan"),
            "condition_sql": ("DELETE FROM shop_order", "condition_sql"),
            "name": ("a/../b\x01", "name"),
        }
        said = self.add(**{field: value for field, (value, _) in wrong.items()})
        for field, (_, words) in wrong.items():
            label = f'id="id_{field}_error"'
            assert label in said, (field, said)
            assert words in said.partition(label)[2].partition("</ul>")[0], field
        assert rows("SELECT name FROM pgbeat.schedules") == []
        assert rows("SELECT count(*) FROM pgbeat.audit") == [(0,)]

    def test_a_schedule_is_changed_in_what_was_written(self) -> None:
        self.add(owner="bob", jitter="2 min")
        [(key,)] = rows("SELECT id FROM pgbeat.schedules")
        form = self.client.get(f"/admin/pgbeat/schedule/{key}/change/").context["adminform"].form
        assert form["jitter"].value() == "2 min"
        given = {name: value for name in form.fields if (value := written(form[name])) is not None}
        given |= {f"initial-{name}": given[name] for name in given if f"initial-{name}" in START}
        given |= {"cron": "", "every": "1 h", "owner": "", "jitter": ""}
        said = self.post(f"schedule/{key}/change/", **given)
        assert "was changed successfully" in said, said
        found = rows("SELECT name, cron, every, owner, jitter, args FROM pgbeat.schedules")
        assert found == [("nightly", None, timedelta(hours=1), None, timedelta(0), "[1]")]
        [(before, after)] = rows("SELECT before, after FROM pgbeat.audit WHERE verb = 'update'")
        assert {"cron", "every", "owner", "jitter"} >= set(json.loads(after)) & set(given)
        assert before != after

    def test_actions(self) -> None:
        self.add()
        [(key,)] = rows("SELECT id FROM pgbeat.schedules")
        for action, past in (
            ("pause", "Paused"),
            ("resume", "Resumed"),
            ("disable", "Disabled"),
            ("enable", "Enabled"),
            ("trigger", "Launched"),
        ):
            assert f"{past}: nightly." in self.act("schedule", action, key), action
        assert rows("SELECT created_by, schedule FROM pgbeat.jobs") == [("user:ada", "nightly")]
        verbs = rows("SELECT verb, actor FROM pgbeat.audit ORDER BY id")
        assert [verb for verb, _ in verbs] == [
            "create",
            "pause",
            "resume",
            "disable",
            "enable",
            "trigger",
        ]
        assert {actor for _, actor in verbs} == {"user:ada"}
        assert "nightly" in self.page("tick/")
        assert "launched" in self.page("tick/", outcome__exact="launched", q="night")
        assert "0 ticks" in self.page("tick/", q="other")
        [tick] = models.Tick.objects.all()
        assert "nightly" in self.page(f"tick/{tick.pk}/change/")

    def test_what_an_action_refuses_is_told(self) -> None:
        self.add(condition_sql="SELECT false")
        [(key,)] = rows("SELECT id FROM pgbeat.schedules")
        said = self.act("schedule", "trigger", key)
        assert "was skipped: condition_sql is false" in said
        assert "Launched" not in said

    def test_a_schedule_is_deleted(self) -> None:
        self.add()
        [(key,)] = rows("SELECT id FROM pgbeat.schedules")
        assert "was deleted" in self.post(f"schedule/{key}/delete/", post="yes")
        assert rows("SELECT name FROM pgbeat.schedules") == []
        assert rows("SELECT verb FROM pgbeat.audit ORDER BY id DESC LIMIT 1") == [("delete",)]

    def test_states(self) -> None:
        self.add()
        self.add(name="other")
        rows("UPDATE pgbeat.schedules SET paused_at = now() WHERE name = 'other'")
        assert "1 schedule\n" in self.page("schedule/", state="paused")
        assert "1 schedule\n" in self.page("schedule/", state="active")
        assert "2 schedules" in self.page("schedule/")


def written(field: Any) -> str | None:
    """Returns what a field's input holds."""
    value = field.value()
    if isinstance(value, datetime) or value is None:
        return None
    return str(value)


class Jobs(Pages):
    def test_a_job_is_cancelled_and_retried(self) -> None:
        job = pgbeat.submit(ship, 1)
        assert "Cancelled: " in self.act("job", "cancel", job.id)
        [(state, error)] = rows("SELECT state, error FROM pgbeat.jobs")
        assert (state, error) == ("cancelled", "cancelled by user:ada")
        assert "it has ended" in self.act("job", "cancel", job.id)
        assert "Retried: " in self.act("job", "retry", job.id)
        [(retry,)] = rows("SELECT id FROM pgbeat.jobs WHERE retry_of = %s", job.id)
        said = self.page(f"job/{retry}/change/")
        assert str(job.id) in said
        assert f'href="http://testserver/pgbeat/console/jobs/{retry}"' in said
        assert "_save" not in said

    def test_search_and_filters(self) -> None:
        job = pgbeat.submit(ship, 1)
        for query in (
            {"q": str(job.id)},
            {"q": "SHIP"},
            {"state__exact": "pending"},
            {"created_by": job.created_by},
        ):
            assert str(job.id) in self.page("job/", **query), query
        for query in ({"q": str(uuid4())}, {"q": "nope"}, {"state__exact": "failed"}):
            assert str(job.id) not in self.page("job/", **query), query
        refused = self.client.get("/admin/pgbeat/job/", {"error__contains": "x"})
        assert refused.status_code != 200

    def test_another_namespaces_rows_are_not_there(self) -> None:
        job = pgbeat.submit(ship, 1)
        rows("UPDATE pgbeat.jobs SET namespace = 'other'")
        assert str(job.id) not in self.page("job/")
        assert self.client.get(f"/admin/pgbeat/job/{job.id}/change/").status_code == 302

    def test_lists_read_a_bounded_part_of_the_history(self) -> None:
        rows(
            "INSERT INTO pgbeat.jobs (id, task, job_source, created_by, is_system_job, state, "
            "created_at, finished_at) SELECT gen_random_uuid(), 'a', 'system', 'b', false, "
            "'completed', now(), now() FROM generate_series(1, %s)",
            pages.MOST + 1_000,
        )
        rows("ANALYZE pgbeat.jobs")
        with CaptureQueriesContext(connection) as queries:
            assert f"{pages.MOST} jobs" in self.page("job/")
        for query in queries:
            if '"pgbeat"."jobs"' in query["sql"]:
                [(plan,)] = rows("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"])
                plan = json.loads(plan) if isinstance(plan, str) else plan
                assert most_rows(plan[0]["Plan"]) <= pages.MOST, query["sql"]


def most_rows(plan: dict[str, Any]) -> int:
    """Returns the most rows that a node of a plan read."""
    below = [most_rows(each) for each in plan.get("Plans", ())]
    removed = plan.get("Rows Removed by Filter", 0)
    return int(max([plan["Actual Rows"] + removed, *below]))


class Lanes(Pages):
    def test_a_lane_is_added_changed_paused_and_deleted(self) -> None:
        fields = {"options": "{}", "initial-options": "{}"}
        self.post("lane/add/", name="gpu", max_running="2", **fields)
        assert rows("SELECT name, max_running FROM pgbeat.lanes") == [("gpu", 2)]
        said = self.post("lane/add/", name="cpu", max_running="-1", **fields)
        assert 'id="id_max_running_error"' in said
        said = self.post("lane/add/", name="gpu", max_running="1", **fields)
        assert "there is a lane" in said
        self.post("lane/gpu/change/", max_running="3", **fields)
        assert rows("SELECT name, max_running FROM pgbeat.lanes") == [("gpu", 3)]
        assert "Paused: gpu." in self.act("lane", "pause", "gpu")
        assert rows("SELECT paused_at IS NULL FROM pgbeat.lanes") == [(False,)]
        assert "Resumed: gpu." in self.act("lane", "resume", "gpu")
        pgbeat.submit(ship, 1, lane="gpu", countdown=3600)
        assert "is in use" in self.post("lane/gpu/delete/", post="yes")
        rows("DELETE FROM pgbeat.unfinished_jobs")
        assert "was deleted" in self.post("lane/gpu/delete/", post="yes")
        assert rows("SELECT name FROM pgbeat.lanes") == []
        assert {actor for (actor,) in rows("SELECT actor FROM pgbeat.audit")} == {"user:ada"}


class Permissions(Pages):
    def viewer(self, *names: str) -> Client:
        """Returns the client of a member of the staff with permissions."""
        user = User.objects.create_user("vera", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="pgbeat", codename__in=names)
        assert len(found) == len(names)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    def test_without_any_there_is_nothing(self) -> None:
        client = self.viewer()
        assert client.get("/admin/pgbeat/job/").status_code == 403
        assert client.get("/admin/pgbeat/schedule/add/").status_code == 403

    def test_who_may_look_may_not_act(self) -> None:
        self.add()
        [(key,)] = rows("SELECT id FROM pgbeat.schedules")
        client = self.viewer("view_schedule", "view_job")
        assert b"nightly" in client.get("/admin/pgbeat/schedule/").content
        self.act("schedule", "pause", key, client=client)
        assert rows("SELECT paused_at FROM pgbeat.schedules") == [(None,)]
        job = pgbeat.submit(ship, 1)
        self.act("job", "cancel", job.id, client=client)
        assert rows("SELECT state FROM pgbeat.jobs") == [("pending",)]
        assert client.post(f"/admin/pgbeat/schedule/{key}/delete/").status_code == 403

    def test_arguments_are_masked_from_all_but_administrators(self) -> None:
        task: Any = current_app.tasks[TASK]
        task.pgbeat_redact = "*"
        self.addCleanup(delattr, task, "pgbeat_redact")
        job = pgbeat.submit(ship, 471147)
        rows("UPDATE pgbeat.jobs SET state = 'failed', error = 'Oops: 471147', finished_at = now()")
        self.add()
        rows(
            "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, error) "
            "SELECT id, name, now(), 'failed', 'Oops: 471147' FROM pgbeat.schedules"
        )
        client = self.viewer("view_job", "change_job", "view_tick")
        lists = ("/admin/pgbeat/job/", "/admin/pgbeat/tick/")
        for path in (f"/admin/pgbeat/job/{job.id}/change/", *lists):
            assert "471147" not in client.get(path).content.decode(), path
            assert "471147" in self.client.get(path).content.decode(), path

    def test_who_may_change_jobs_may_cancel_them(self) -> None:
        client = self.viewer("view_job", "change_job")
        job = pgbeat.submit(ship, 1)
        assert "Cancelled: " in self.act("job", "cancel", job.id, client=client)
        assert client.post(f"/admin/pgbeat/job/{job.id}/change/").status_code == 403

    def test_models_refuse_to_be_written(self) -> None:
        job = pgbeat.submit(ship, 1)
        row = models.Job.objects.get(pk=job.id)
        assert row.created_at > datetime(2020, 1, 1, tzinfo=UTC)
        assert isinstance(row.pk, UUID)
        for change in (row.save, row.delete):
            with self.assertRaises(TypeError):
                change()
