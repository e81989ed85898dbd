"""Lists options and settings of other brokers, which a team that only changes the URL still has.

They are ignored, with one warning that says what to use instead.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

logger = logging.getLogger("pgbeat.transport")

#: The advice for `broker_use_ssl`.
TLS = "use sslmode, sslrootcert, … in the URL or in connect_args"
_CONNECT = "use connect_args, with libpq's parameters, such as connect_timeout and keepalives_idle"
_ACCESS = "the server's pg_hba.conf decides"
_ETA = "not needed: the table keeps messages until their ETA"

#: Options of kombu's other transports, by what to use instead.
_INSTEAD = {
    TLS: "is_secure ssl",
    _CONNECT: (
        "socket_timeout socket_connect_timeout socket_keepalive socket_keepalive_options "
        "health_check_interval read_timeout write_timeout frame_max client-config connect_timeout"
    ),
    _ACCESS: "login_method",
    _ETA: "native_delayed_delivery",
    "not needed: a message is requeued when its consumer's session ends, however long a task takes":
        "unacked_key unacked_index_key unacked_mutex_key unacked_mutex_expire "
        "unacked_restore_limit unacked_restore_interval unacked_restore_throttle "
        "visibility_timeout peek_lock peek_lock_seconds ack_deadline_seconds "
        "ack_modify_batch_size",
    "use another database":
        "global_keyprefix queue_name_prefix data_folder_in data_folder_out control_folder",
    "not needed: a process has one connection that publishes and one that consumes":
        "max_connections channel_max pool_size pool_timeout pool_recycle pool_pre_ping "
        "max_overflow poolclass",
    "not needed: exchanges are routed in the database":
        "fanout_prefix fanout_patterns sentinel_fanout_compat capped_queue_size",
    "not needed: a publish returns when the message is committed; see synchronous_commit":
        "confirm_publish confirm_timeout",
    "not needed: workers are notified; polling_interval is a fallback":
        "wait_time_seconds max_poll_seconds use_notify",
    "not needed: priorities are 0 to 9, or up to the queue's x-max-priority": "sep priority_steps",
    "not needed: messages are always acknowledged": "ack_emulation",
    "not needed: a lost connection is reopened": "retry_on_timeout",
    "not needed: the database blocks no publisher": "on_blocked on_unblocked",
    "not needed: the URL says where the database is": "region regioninfo",
    "not needed: queues and exchanges are declared by their use":
        "predefined_queues predefined_exchanges",
    "not needed: a queue is a row": "queue_tags",
    "not needed: a message is read as a whole": "fetch_message_attributes",
    "not needed: a queue's messages are claimed in order": "fifo_mode",
    "not needed: claims are exact at READ COMMITTED": "isolation_level",
    "not needed: `pgbeat queues` counts": "calc_queue_size",
    "not needed: any number of workers share a queue": "num_partitions",
    "queues take turns; use priorities": "queue_order_strategy",
    "sessions give host and process as application_name; connect_args can change it":
        "client_name client_properties",
    "give several hosts in the URL, with target_session_attrs=read-write":
        "master_name min_other_sentinels sentinel_kwargs",
    "use connect_args: passfile, sslcert, …":
        "credential_provider sts_role_arn sts_token_timeout sts_token_buffer_time",
    "use max_retries": "retry_total",
    "use interval_step": "retry_backoff_factor",
    "use interval_max": "retry_backoff_max",
    "use the log of the server: log_statement": "echo",
    "use x-message-ttl and x-expires, the queue's arguments": "ttl",
    "use the server's replication, and synchronous_commit": "replication_factor",
    "use pgbeat_track: executions are kept": "store_processed processed_folder",
}  # fmt: skip
#: What to use instead of each option.
OPTIONS = {name: instead for instead, names in _INSTEAD.items() for name in names.split()}

#: Celery's settings for other brokers.
_SETTINGS = {
    "broker_use_ssl": TLS,
    "broker_login_method": _ACCESS,
    "broker_heartbeat": _CONNECT,
    "broker_heartbeat_checkrate": _CONNECT,
    "broker_native_delayed_delivery_queue_type": _ETA,
    "task_default_queue_type": "queues are of one kind",
    "task_create_missing_queue_type": "queues are of one kind",
}

#: Arguments of RabbitMQ's queues, by what to use instead.
_ARGUMENTS = {
    "x-dead-letter-exchange": "dead letters are kept in a table: `pgbeat dead`",
    "x-dead-letter-routing-key": "dead letters are kept in a table: `pgbeat dead`",
    "x-single-active-consumer": "use a lane with a limit",
    "x-queue-type": "queues are of one kind",
}

_warned: set[str] = set()


def ignored_settings(conf: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """Returns an app's settings that pgbeat's transport ignores, and what to use instead.

    `defaults` are Celery's. A setting with its default value was not set.
    """
    backend = str(conf.get("result_backend") or "")
    ignored = dict(_SETTINGS)
    if not backend.startswith(("redis", "sentinel")):
        redis = "Redis is neither the broker nor the result backend"
        ignored |= {name: redis for name in defaults if name.startswith("redis_")}
    if not backend:
        ignored["result_backend_transport_options"] = "there is no result backend"
    return {
        name: instead
        for name, instead in ignored.items()
        if name in defaults and conf.get(name) != defaults[name]
    }


def warn_of_arguments(names: Iterable[str]) -> None:
    """Warns of arguments of queues that have no effect."""
    warn("Arguments of queues", {n: _ARGUMENTS.get(n, "there is no such thing") for n in names})


def warn(what: str, ignored: Mapping[str, str]) -> None:
    """Warns of ignored options or settings, once in a process of each."""
    fresh = {name: instead for name, instead in ignored.items() if name not in _warned}
    if fresh:
        _warned.update(fresh)
        logger.warning(
            "%s of other brokers are ignored by pgbeat's transport:%s",
            what,
            "".join(f"\n  {name}: {instead}" for name, instead in sorted(fresh.items())),
        )
