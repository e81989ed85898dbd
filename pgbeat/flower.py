"""Adds pgbeat's history, broker and links to its console to Flower: `import pgbeat.flower`.

`celery flower` imports it by itself.
"""

import pgbeat.integrations.flower
import pgbeat.integrations.flower_history  # noqa: F401
