"""Reads, keeps and answers Celery's messages of jobs."""
