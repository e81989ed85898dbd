"""The result backend, in one process."""
