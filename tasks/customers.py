"""Customers of the shop: `python -m tasks.customers` asks it for work, again and again.

Reports of two tenants wait in a fair lane; there are a chord, a group, a job that is late,
and one that an administrator must approve.
"""

import time

from celery import chord

import pgbeat
from tasks import app
from tasks.shop import customer_report, forget_customer, invoice, month_end, price_of

#: The tenants, and how many reports each asks for at a time.
TENANTS = {"acme": 8, "globex": 2}
#: The lane of the reports.
LANE = "reports"
#: Seconds between two rounds.
_PAUSE = 40.0


def ask(turn: int) -> None:
    """Asks for a round of jobs."""
    for tenant, reports in TENANTS.items():
        for number in range(reports):
            pgbeat.submit(
                customer_report,
                kwargs={"tenant": tenant, "number": number},
                lane=LANE,
                app=app,
                labels={"tenant": tenant},
            )
    chord([price_of.s(item) for item in range(4)])(invoice.s())
    if turn % 3 == 0:
        pgbeat.submit_group(
            [price_of.s(item) for item in range(6)], name="price list", mode="sequential", app=app
        )
        pgbeat.submit(month_end, must_end_within="5 seconds", app=app)
    if turn == 0:
        pgbeat.submit(forget_customer, 4711, requires_approval=True, app=app)


def main() -> None:
    """Asks for a round at regular intervals."""
    turn = 0
    while True:
        ask(turn)
        turn += 1
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
