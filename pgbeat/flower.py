"""Adds pgbeat's broker and links to its console to Flower: `import pgbeat.flower`."""

import pgbeat.integrations.flower  # noqa: F401
