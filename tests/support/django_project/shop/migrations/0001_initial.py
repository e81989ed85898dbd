"""Makes the shop's table, and sends a task as data migrations may."""

from typing import Any

from django.db import migrations, models

from tests.support.django_project.celery import app


def send(apps: Any, schema_editor: Any) -> None:
    """Sends a task, whose tables must be there already."""
    app.send_task("shop.migrated", queue="migrations")


class Migration(migrations.Migration):
    """The first migration."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("is_shipped", models.BooleanField(default=False)),
            ],
        ),
        migrations.RunPython(send, migrations.RunPython.noop),
    )
