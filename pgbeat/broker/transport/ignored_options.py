"""Options and settings of other brokers, which a team that only changes the URL brings along.

They are ignored, with one warning that says what does the same here.
"""

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("pgbeat.transport")

_RESERVE = (
    "not needed: a message goes back when its consumer's session ends, however long the task takes"
)
_DATABASE = "use a database, or the options queue_tablename and message_tablename, of its own"
_ROUTES = "not needed: exchanges are routed in the database"
_CONNECT = "use connect_args, with libpq's parameters, such as connect_timeout and keepalives_idle"
#: What does the same as `broker_use_ssl`.
TLS = "use sslmode, sslrootcert, … in the URL or in connect_args"
_POOL = "not needed: a process has one connection that publishes and one that consumes"
_PUBLISHED = "not needed: a publish returns when the message is committed; see synchronous_commit"
_NOTIFIED = "not needed: workers are notified; polling_interval is a fallback"
_PRIORITIES = "not needed: priorities are 0 to 9, or up to the queue's x-max-priority"

#: Options of kombu's other transports, and what does the same here.
OPTIONS: dict[str, str] = {
    # Redis and Sentinel
    "ack_emulation": "not needed: messages are always acknowledged",
    "unacked_key": _RESERVE,
    "unacked_index_key": _RESERVE,
    "unacked_mutex_key": _RESERVE,
    "unacked_mutex_expire": _RESERVE,
    "unacked_restore_limit": _RESERVE,
    "unacked_restore_interval": _RESERVE,
    "unacked_restore_throttle": _RESERVE,
    "visibility_timeout": _RESERVE,
    "sep": _PRIORITIES,
    "priority_steps": _PRIORITIES,
    "queue_order_strategy": "queues take turns; use priorities",
    "fanout_prefix": _ROUTES,
    "fanout_patterns": _ROUTES,
    "global_keyprefix": _DATABASE,
    "socket_timeout": _CONNECT,
    "socket_connect_timeout": _CONNECT,
    "socket_keepalive": _CONNECT,
    "socket_keepalive_options": _CONNECT,
    "health_check_interval": _CONNECT,
    "retry_on_timeout": "not needed: a lost connection is made anew",
    "max_connections": _POOL,
    "client_name": "sessions say host and process in application_name; connect_args may say more",
    "master_name": "give several hosts in the URL, with target_session_attrs=read-write",
    "min_other_sentinels": "give several hosts in the URL, with target_session_attrs=read-write",
    "sentinel_kwargs": "give several hosts in the URL, with target_session_attrs=read-write",
    "sentinel_fanout_compat": _ROUTES,
    "credential_provider": "use connect_args: passfile, sslcert, …",
    # AMQP
    "confirm_publish": _PUBLISHED,
    "confirm_timeout": _PUBLISHED,
    "read_timeout": _CONNECT,
    "write_timeout": _CONNECT,
    "client_properties": "sessions say host and process in application_name",
    "login_method": "the server's pg_hba.conf decides",
    "on_blocked": "not needed: the database blocks no publisher",
    "on_unblocked": "not needed: the database blocks no publisher",
    "native_delayed_delivery": "not needed: an ETA is kept in the table",
    "frame_max": _CONNECT,
    "channel_max": _POOL,
    # SQS and other queues in the cloud
    "region": "not needed: the URL says where the database is",
    "regioninfo": "not needed: the URL says where the database is",
    "is_secure": TLS,
    "predefined_queues": "not needed: queues are declared by their use",
    "predefined_exchanges": "not needed: exchanges are declared by their use",
    "queue_name_prefix": _DATABASE,
    "queue_tags": "not needed: a queue is a row",
    "wait_time_seconds": _NOTIFIED,
    "max_poll_seconds": _NOTIFIED,
    "use_notify": _NOTIFIED,
    "fetch_message_attributes": "not needed: a message is read as a whole",
    "sts_role_arn": "use connect_args: passfile, sslcert, …",
    "sts_token_timeout": "use connect_args: passfile, sslcert, …",
    "sts_token_buffer_time": "use connect_args: passfile, sslcert, …",
    "client-config": _CONNECT,
    "fifo_mode": "not needed: a queue's messages are taken in their order",
    "peek_lock": _RESERVE,
    "peek_lock_seconds": _RESERVE,
    "retry_total": "use max_retries",
    "retry_backoff_factor": "use interval_step",
    "retry_backoff_max": "use interval_max",
    "ack_deadline_seconds": _RESERVE,
    "ack_modify_batch_size": _RESERVE,
    # SQLAlchemy
    "pool_size": _POOL,
    "pool_timeout": _POOL,
    "pool_recycle": _POOL,
    "pool_pre_ping": _POOL,
    "max_overflow": _POOL,
    "poolclass": _POOL,
    "echo": "use the log of the server: log_statement",
    "isolation_level": "not needed: claims are exact at READ COMMITTED",
    # MongoDB, Kafka, files
    "connect_timeout": _CONNECT,
    "ssl": TLS,
    "ttl": "use x-message-ttl and x-expires, the queue's arguments",
    "capped_queue_size": _ROUTES,
    "calc_queue_size": "not needed: `pgbeat queues list` counts",
    "num_partitions": "not needed: any number of workers share a queue",
    "replication_factor": "the server's replication, and synchronous_commit",
    "data_folder_in": _DATABASE,
    "data_folder_out": _DATABASE,
    "control_folder": _DATABASE,
    "store_processed": "use pgbeat_track: executions are kept",
    "processed_folder": "use pgbeat_track: executions are kept",
}

#: Settings of Celery's for other brokers.
_SETTINGS: dict[str, str] = {
    "broker_use_ssl": TLS,
    "broker_login_method": "the server's pg_hba.conf decides",
    "broker_heartbeat": _CONNECT,
    "broker_heartbeat_checkrate": _CONNECT,
    "broker_native_delayed_delivery_queue_type": "not needed: an ETA is kept in the table",
    "task_default_queue_type": "queues are of one kind",
    "task_create_missing_queue_type": "queues are of one kind",
}

_warned: set[str] = set()


def ignored_settings(conf: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings of an app on pgbeat's transport that do nothing there, and what does
    the same. `defaults` are Celery's; a setting that has its default was not set."""
    backend = str(conf.get("result_backend") or "")
    found = dict(_SETTINGS)
    if not backend.startswith(("redis", "sentinel")):
        redis = "Redis is neither the broker nor the result backend"
        found |= {name: redis for name in defaults if name.startswith("redis_")}
    if not backend:
        found["result_backend_transport_options"] = "there is no result backend"
    return {
        name: instead
        for name, instead in found.items()
        if name in defaults and conf.get(name) != defaults[name]
    }


def warn(what: str, ignored: Mapping[str, str]) -> None:
    """Warns of options or settings that are ignored, of each once in a process, all together."""
    fresh = {name: instead for name, instead in ignored.items() if name not in _warned}
    if fresh:
        _warned.update(fresh)
        logger.warning(
            "%s of other brokers are ignored by pgbeat's transport:%s",
            what,
            "".join(f"\n  {name}: {instead}" for name, instead in sorted(fresh.items())),
        )
