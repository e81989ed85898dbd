"""Counts for Prometheus, and reads the counts at each scrape."""
