"""Writes jobs together with their messages."""
