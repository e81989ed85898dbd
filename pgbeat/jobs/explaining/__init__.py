"""Explains where a job is, when it did what, and to which tree it belongs."""
