"""Fails a Patroni cluster over under load, and measures: `python -m tests.acceptance.failovers`.

It needs Debian's packages patroni, etcd-server, haproxy, pgbouncer and postgresql.
"""
