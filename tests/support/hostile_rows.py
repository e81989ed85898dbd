"""Writes a thing of each kind whose texts are what somebody hostile would write."""

from psycopg.types.json import Jsonb

from tests.support.rows import (
    Sql,
    insert,
    make_calendar,
    make_delivery,
    make_execution,
    make_job,
    make_lane,
    make_schedule,
    make_stack,
    make_template,
    make_tick,
    make_waiting,
    make_webhook,
)


def write(sql: Sql, text: str, name: str) -> dict[str, str]:
    """Writes the text wherever others may; a schedule and a lane have that name.

    Returns the ids of a job and a group.
    """
    make_calendar(sql, "c", weekdays=["sat"])
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
    event = {"namespace": "default", "key": task, "value": Jsonb(text), "emitted_by": text}
    insert(sql, "events", event, "id")
    make_waiting(sql, task, task=task)
    make_tick(sql, key, schedule=name, reason=text, note=text)
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
    log = {"lines": [[1, text, text, text]]}
    run = dict.fromkeys(of_run, text)
    run_id = make_execution(sql, job, "failed", **run, metadata={"a": text}, log=log)
    make_stack(sql, job, run_id, stack=text)
    change = dict.fromkeys(("actor", "verb", "kind", "subject"), text)
    insert(sql, "audit", change | {"origin": "cli", "after": {"a": text}}, "id")
    by = {"created_by": text}
    make_template(sql, task=task, description=text, kwargs={text: 1}, queue=text, **by)
    off = {"enabled": False, "disabled_reason": text}
    hook_id = make_webhook(sql, "h", url="https://a.b/<script>", **off, **by)
    tried = Jsonb([{"at": "2026-01-01T00:00:00Z", "error": text}])
    make_delivery(sql, hook_id, "failed", payload={"a": text}, log=tried)
    return {"job": job, "group": str(group_id)}
