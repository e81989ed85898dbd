"""What a web shop does in the background."""

import time
from typing import Any

import pgbeat
from tasks import app


@app.task
def sync_warehouse(pages: int = 30) -> dict[str, int]:
    """Reads the stock page by page, and says how far it is."""
    for page in range(1, pages + 1):
        time.sleep(1)
        pgbeat.progress(page, pages, f"shelf {page}")
    return {"pages": pages}


@app.task
def customer_report(tenant: str, number: int) -> dict[str, Any]:
    """Writes a report of a tenant."""
    time.sleep(1 + number % 3)
    return {"tenant": tenant, "number": number}


@app.task
def price_of(item: int) -> int:
    """Returns the price of an item in cents."""
    time.sleep(0.5)
    return 199 + 100 * item


@app.task
def invoice(prices: list[int]) -> int:
    """Adds up prices."""
    return sum(prices)


@app.task
def month_end() -> str:
    """Closes the books, which takes longer than it should."""
    time.sleep(12)
    return "closed"


@app.task
def forget_customer(customer: int) -> int:
    """Deletes a customer's data, which somebody must approve first."""
    return customer
