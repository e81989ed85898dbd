"""Finds jobs by filters and queries."""
