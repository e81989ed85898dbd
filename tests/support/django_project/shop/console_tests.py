"""Django's own tests of the console below a URL of the project's."""

import asyncio
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import AsyncClient, Client, TransactionTestCase, override_settings

import pgbeat
from pgbeat.integrations.django.console import _app
from tests.support.django_project.shop.tasks import ship

SAME = {"Sec-Fetch-Site": "same-origin"}


class Console(TransactionTestCase):
    """Tests with real commits, since the console has connections of its own."""

    def setUp(self) -> None:
        with connection.cursor() as cursor:
            for table in ("schedules", "unfinished_jobs", "ended_jobs", "audit"):
                cursor.execute(f"DELETE FROM pgbeat.{table}")

    @classmethod
    def tearDownClass(cls) -> None:
        web_app, _ = _app()
        web_app.state.pgbeat_watch.close()
        web_app.state.pgbeat_watch.join()
        super().tearDownClass()

    def signed_in(self, name: str = "ada", *, kind: Any = Client, **fields: Any) -> Any:
        """Returns the client of a user."""
        user = User.objects.create_user(name, **{"is_staff": True, **fields})
        client = kind()
        client.force_login(user)
        return client

    def test_strangers_are_led_to_the_admin_sites_login(self) -> None:
        answer = Client().get("/pgbeat/console/jobs?state=failed")
        assert answer.status_code == 302
        assert answer["Location"] == ("/admin/login/?next=/pgbeat/console/jobs%3Fstate%3Dfailed")
        assert Client().post("/pgbeat/admin/scheduled-jobs/pause").status_code == 403
        assert self.signed_in(is_staff=False).get("/pgbeat/").status_code == 403
        assert self.signed_in("eve", is_active=False).get("/pgbeat/").status_code == 302

    def test_an_administrators_pages_and_changes(self) -> None:
        ada = self.signed_in(is_superuser=True)
        first = ada.get("/pgbeat/")
        assert (first.status_code, first["Location"]) == (303, "/pgbeat/console/overview")
        page = ada.get(first["Location"]).content.decode()
        assert "ada" in page and "administrator" in page
        assert "Sign out" not in page
        assert "/pgbeat/static/console.css" in page
        style = ada.get("/pgbeat/static/console.css")
        assert style.status_code == 200 and style["Content-Type"].startswith("text/css")
        fields = {
            "name": "a b",
            "kind": "cron",
            "timetable": "0 2 * * *",
            "task": ship.name,
            "args": "[1]",
        }
        made = ada.post("/pgbeat/console/new/schedule", fields, headers=SAME)
        assert made.status_code == 303, made.content.decode()
        assert "was created" in ada.get(made["Location"]).content.decode()
        with connection.cursor() as cursor:
            cursor.execute("SELECT actor, origin, verb FROM pgbeat.audit")
            assert cursor.fetchall() == [("user:ada", "page", "create")]

    def test_changes_from_other_sites_are_refused(self) -> None:
        ada = self.signed_in(is_superuser=True)
        path, fields = "/pgbeat/console/schedules", {"do": "pause"}
        for headers in (
            {},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.test"},
            {"Origin": "null"},
        ):
            assert ada.post(path, fields, headers=headers).status_code == 403, headers
        for headers in (SAME, {"Origin": "http://testserver"}):
            assert ada.post(path, fields, headers=headers).status_code == 303, headers

    @override_settings(ALLOWED_HOSTS=["shop.test"])
    def test_unknown_hosts_are_refused(self) -> None:
        ada = self.signed_in(is_superuser=True)
        assert ada.get("/pgbeat/console/jobs", headers={"host": "evil.test"}).status_code == 400
        assert ada.get("/pgbeat/console/jobs", headers={"host": "shop.test"}).status_code == 200

    def test_others_of_the_staff_see_their_own_jobs(self) -> None:
        vera = self.signed_in("vera")
        own, other = (pgbeat.submit(ship, 1, created_by=f"user:{name}") for name in ("vera", "ada"))
        jobs = vera.get(vera.get("/pgbeat/")["Location"]).content.decode()
        assert str(own.id) in jobs and str(other.id) not in jobs
        assert vera.get(f"/pgbeat/jobs/{other.id}").status_code == 404
        assert vera.get("/pgbeat/console/schedules").status_code == 403
        user = User.objects.get(username="vera")
        user.user_permissions.add(Permission.objects.get(codename="observe"))
        assert vera.get("/pgbeat/console/schedules").status_code == 200
        pause: Any = {"path": "/pgbeat/admin/scheduled-jobs/pause", "headers": SAME}
        pause |= {"data": {}, "content_type": "application/json"}
        assert vera.post(**pause).json()["code"] == "read_only"
        user.user_permissions.add(Permission.objects.get(codename="administer"))
        assert vera.post(**pause).status_code == 200

    def test_django_signs_people_in(self) -> None:
        ada = self.signed_in()
        assert ada.get("/pgbeat/login").status_code == 404
        assert ada.post("/pgbeat/login", {"token": "x"}, headers=SAME).status_code == 404

    def test_streams_are_refused_under_wsgi(self) -> None:
        answer = self.signed_in().get("/pgbeat/console/changes?of=jobs")
        assert (answer.status_code, answer.content) == (204, b"")

    def test_streams_under_asgi(self) -> None:
        client = self.signed_in(kind=AsyncClient)

        async def main() -> bytes:
            answer = await client.get("/pgbeat/console/changes?of=jobs")
            assert answer.status_code == 200
            assert answer["Content-Type"].startswith("text/event-stream")
            found = b""
            chunks = aiter(answer)
            while b"event: changed" not in found:
                found += await asyncio.wait_for(anext(chunks), 20)
            await chunks.aclose()
            return found

        assert b"event: changed" in async_to_sync(main)()

    def test_pages_under_asgi(self) -> None:
        client = self.signed_in(kind=AsyncClient, is_superuser=True)

        async def main() -> Any:
            return await client.get("/pgbeat/console/schedules")

        assert "Schedules" in async_to_sync(main)().content.decode()
