"""Reads manifests of Kubernetes' CronJobs: their only container becomes a task's arguments."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pgbeat.errors import PgbeatError
from pgbeat.schedules.importers import imported, timetables
from pgbeat.schedules.importers.timetables import Unmovable, When
from pgbeat.timetables import parse_duration

BEAT = "Kubernetes"
_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel_previous"}
#: What a task gets of a container, or needn't have: `kubectl get` adds the rest.
_TAKEN = {
    "name", "image", "command", "args", "containers", "initContainers", "template", "restartPolicy",
    "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy", "dnsPolicy",
    "schedulerName", "terminationGracePeriodSeconds",
}  # fmt: skip


def inventory(
    label: str, documents: list[Any], *, task: str, timezone: str | None = None
) -> imported.Inventory:
    """Returns the CronJobs as arrivals; `timezone` is for those without one.

    Raises `PgbeatError` if there are none.
    """
    result = imported.Inventory(BEAT, label, stop="suspend these CronJobs")
    others: set[str] = set()
    found = list(_cron_jobs(documents, others))
    if not found:
        kinds = f"only {', '.join(sorted(others))}" if others else "nothing"
        raise PgbeatError(
            f"{label} holds {kinds}; expected manifests of kind CronJob, as "
            "`kubectl get cronjobs -o yaml` prints them"
        )
    metadata = [_at(job, "metadata") for job in found]
    owned = [(str(each.get("namespace")), str(each.get("name"))) for each in metadata]
    for job, origin in zip(found, imported.origins(owned), strict=True):
        result.take(_arrival, origin, job, task, timezone)
    return result


def _at(value: Any, *path: str) -> Mapping[str, Any]:
    """Returns the mapping at a path; an empty one without it."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _cron_jobs(documents: list[Any], others: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the CronJobs, also those of lists, and adds what else there is to `others`."""
    for content in _items(documents):
        kind = str(content.get("kind"))
        if kind == "CronJob":
            yield content
        elif kind.endswith("List") and isinstance(content.get("items"), list):
            yield from _cron_jobs(content["items"], others)
        else:
            others.add(kind)


def _arrival(
    origin: str, job: Mapping[str, Any], task: str, timezone: str | None
) -> imported.Arrival:
    spec = _at(job, "spec")
    pod = _at(spec, "jobTemplate", "spec", "template", "spec")
    container = _only_container(pod)
    kwargs = {
        "image": container.get("image"),
        "command": container.get("command") or [],
        "args": container.get("args") or [],
    }
    policy = str(spec.get("concurrencyPolicy") or "Allow")
    deadline = spec.get("startingDeadlineSeconds")
    if policy not in _OVERLAPS:
        raise Unmovable(f"its concurrencyPolicy is {policy!r}; it is one of {', '.join(_OVERLAPS)}")
    when, remarks = _when(spec, timezone)
    left = _left({**_at(spec, "jobTemplate", "spec"), **pod, **container})
    if left:
        remarks.append(f"not carried over: {'; '.join(left)}")
    return imported.Arrival(
        origin=origin,
        what={
            "task": task,
            **imported.arguments([], kwargs),
            "overlap": _OVERLAPS[policy],
            "grace": None if deadline is None else timedelta(seconds=deadline),
        },
        when=when,
        last_run=_moment(_at(job, "status").get("lastScheduleTime")),
        since=_moment(_at(job, "metadata").get("creationTimestamp")),
        disabled_reason=imported.disabled_in(BEAT) if spec.get("suspend") else None,
        remarks=tuple(remarks),
    )


def _only_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [*_items(pod.get("initContainers")), *_items(pod.get("containers"))]
    if len(containers) != 1:
        names = ", ".join(str(container.get("name")) for container in containers) or "none"
        raise Unmovable(f"its containers are {names}; a task is given just one")
    return containers[0]


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _left(parts: Mapping[str, Any]) -> list[str]:
    """Returns what else a container, its pod and its job have, with names where there are any."""
    kept = {key: value for key, value in sorted(parts.items()) if value and key not in _TAKEN}
    names = {key: [str(i["name"]) for i in _items(kept[key]) if "name" in i] for key in kept}
    return [" ".join(filter(None, (key, ", ".join(names[key])))) for key in kept]


def _when(spec: Mapping[str, Any], timezone: str | None) -> tuple[When, list[str]]:
    """Returns when it is due, and remarks on that. Raises `Unmovable`."""
    schedule, zone = str(spec.get("schedule") or "").strip(), spec.get("timeZone") or timezone
    if schedule.startswith("@every "):
        return timetables.of_interval(parse_duration(schedule.removeprefix("@every "))), []
    remarks = [] if zone else ["it names no time zone, so UTC is taken for that of the cluster"]
    return When({"cron": _either(schedule.split()), "timezone": str(zone or "UTC")}), remarks


def _either(fields: list[str]) -> str:
    """Returns a schedule as cron says it.

    If day and weekday are both restricted, Kubernetes wants either, even if one begins with `*/`.
    Its weekdays end at 6, and `N/2` with them; cron's end at 7, which is Sunday again.
    """
    fields[4:5] = [re.sub(r"(^|,)(\w+)/", r"\1\2-6/", field) for field in fields[4:5]]
    if len(fields) == 5 and not {fields[2], fields[4]} & {"*", "?"}:
        for index, span in ((2, "1-31/"), (4, "0-6/")):
            fields[index] = re.sub(r"[*?]/(?!0*1\b)", span, fields[index])
    return " ".join(fields)


def _moment(value: Any) -> datetime | None:
    return None if value is None else imported.aware(datetime.fromisoformat(str(value)))
