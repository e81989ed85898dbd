"""What a noun looks like to programs: one function a noun gives its fields.

The REST API and `--json` send just that; webhooks and event streams send some of it, under the same
names. `tests/web/test_views.py` compares them.
"""

from typing import Any

#: The fields of a noun.
View = dict[str, Any]
