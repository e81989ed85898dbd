"""Reads the policies of jobs, tasks and templates."""
