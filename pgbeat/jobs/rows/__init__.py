"""Finds, locks and inserts the rows of jobs."""
