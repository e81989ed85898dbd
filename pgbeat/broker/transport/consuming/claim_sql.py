"""The statements that claim messages and acknowledge others."""

from pgbeat.database import sql
from pgbeat.database.prepared import Statement

_SQL = "claims.sql"

#: A consumer's settings: waiting messages are read in their index's order, whatever the statistics
#: say. By estimate a reader in order visits a share of all the table's pages, and hundreds of
#: thousands of those hold dead rows when a snapshot is held: the planner then prefers to read and
#: sort all that wait.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}


def _claim(name: str, low: str, alive: str) -> Statement:
    parts = {"low": sql.load(_SQL, low), "alive": sql.load(_SQL, alive)}
    return Statement(name, sql.load(_SQL, "claim", **parts))


#: Claims messages and acknowledges others.
#:
#: Parameters: queues, limit, consumer, acknowledged ids. Rows: id, queue_id, priority, deliveries,
#: redelivered, payload; at the end one without an id, which has as its deliveries whether the
#: consumer is alive (1) or may not claim (0), as its payload the seconds it took.
CLAIM = _claim("claim", "from_the_start", "registered")
#: Claims from where the last claim ended: the lowest id of each queue and priority.
CLAIM_ON = _claim("claim_on", "from_marks", "registered")
#: Claims for a consumer that lives by a lease.
CLAIM_LEASED = _claim("claim_leased", "from_the_start", "leased")
#: Claims for such a consumer from where the last claim ended.
CLAIM_LEASED_ON = _claim("claim_leased_on", "from_marks", "leased")
#: Takes messages without acknowledgement; parameters as of `CLAIM`.
TAKE = Statement("take", sql.load(_SQL, "take"))
