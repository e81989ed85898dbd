"""Checks what users may do with jobs, and what they ask for."""
