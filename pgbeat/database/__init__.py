"""Connections, locks, prepared statements, tables and migrations."""
