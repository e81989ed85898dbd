"""Applications that others wrote, on pgbeat: `python -m tests.applications NAME`."""
