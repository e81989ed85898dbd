"""The result backend with real workers."""
