"""Acceptance tests: the whole system, as its users run it."""
