#!/usr/bin/env bash
# What only the old primary knows, after a replica was promoted that did not get all of it:
# `deploy/lost-tasks.sh OLD NEW '1 day'`, with the URLs of both servers and an interval that begins
# before the failure. It writes two files, for `pgbeat fence release --ended ended` and
# `pgbeat jobs run-many lost`.
set -euo pipefail
old=$1 new=$2 since="now() - interval '$3'"

ended="
    SELECT id::text FROM pgbeat.jobs WHERE finished_at > $since
     UNION SELECT task_id FROM pgbeat.results WHERE date_done > $since"

# A job or a message a line; plain tasks become jobs.
waiting="
    SELECT json_build_object('task', task, 'args', args, 'kwargs', kwargs,
                             'metadata', json_build_object('lost', id))
      FROM pgbeat.jobs WHERE finished_at IS NULL
     UNION ALL
    SELECT json_build_object('task', headers->>'task', 'args', body->0, 'kwargs', body->1,
                             'metadata', json_build_object('lost', headers->>'id'))
      FROM kombu_message,
           LATERAL (SELECT payload::json->'headers') AS h (headers),
           LATERAL (SELECT CASE WHEN headers->>'task' IS NOT NULL THEN convert_from(
                        decode(payload::json->>'body', 'base64'), 'utf8')::json END) AS b (body)
     WHERE job_id IS NULL AND headers->>'task' IS NOT NULL"

psql "$old" -Atc "$ended" >ended
comm -23 <(psql "$old" -Atc "$waiting" | sort) <(psql "$new" -Atc "$waiting" | sort) >lost
wc -l ended lost
