"""Maintains the database while a beat leads."""
