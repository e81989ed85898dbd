"""Writes a thing of each kind whose texts are what somebody hostile would write."""

import json
from typing import Any

from psycopg.types.json import Jsonb

from tests.support.rows import Sql, insert, make_job, make_lane, make_schedule


def write(sql: Sql, text: str, name: str) -> dict[str, str]:
    """Writes the text wherever others may; a schedule and a lane have that name.

    Returns the ids of a job and a group.
    """
    insert(sql, "calendars", {"name": "c", "definition": {"weekdays": ["sat"]}})
    make_lane(sql, "lane", 0)
    make_lane(sql, name)
    task = text if text.isprintable() else "tests.add"
    key = make_schedule(
        sql,
        name,
        task=task,
        owner=text,
        condition_sql=text,
        description=text,
        disabled_reason=text,
        enabled=False,
        last_error=text,
        last_failure="now",
        retry_count=1,
    )
    tick = {"schedule_id": key, "schedule": name, "due_at": "now", "outcome": "skipped"}
    insert(sql, "ticks", tick | {"reason": text, "note": text}, "id")
    group = {"name": text, "job_source": "user_api", "created_by": text}
    group_id = insert(sql, "groups", group, "id")
    of_job = ("task", "error", "schedule", "queue", "unique_key", "worker", "template")
    job = make_job(
        sql,
        "failed",
        **dict.fromkeys((*of_job, "description"), text),
        created_by=f"user:{text}",
        kwargs={text: text},
        tags=[text],
        checkpoint=Jsonb(text),
        metadata={"a": text},
        lane="lane",
        group_id=group_id,
        group_position=0,
    )
    make_job(sql, task=text, created_by=text, lane="lane")
    of_run = ("worker", "error", "traceback", "result", "progress_message")
    run = {"job_id": job, "number": 1, "state": "failed", "finished_at": "now"}
    log = Jsonb({"lines": [[1, text, text, text]]})
    run |= dict.fromkeys(of_run, text) | {"metadata": {"a": text}, "log": log}
    insert(sql, "executions", run, "id")
    change = dict.fromkeys(("actor", "verb", "kind", "subject"), text)
    insert(sql, "audit", change | {"origin": "cli", "after": {"a": text}}, "id")
    template = {"name": "t", "task": task, "description": text, "kwargs": {text: 1}}
    insert(sql, "templates", template | {"queue": text, "created_by": text})
    hook: dict[str, Any] = {
        "name": "h",
        "url": "https://a.b/<script>",
        "secret": "whsec_" + "a" * 40,
    }
    hook |= {"enabled": False, "disabled_reason": text, "created_by": text}
    hook_id = insert(sql, "webhooks", hook | {"events": ["job.failed"]}, "id")
    sql(
        "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, log, finished_at, "
        "next_at) VALUES (%s, 'job.failed', %s, 'failed', %s, now(), NULL)",
        hook_id,
        json.dumps({"a": text}),
        json.dumps([{"at": "2026-01-01T00:00:00Z", "error": text}]),
    )
    return {"job": job, "group": str(group_id)}
