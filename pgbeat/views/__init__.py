"""What a noun looks like to programs: one function a noun gives its fields.

The REST API and `--json` send just that; webhooks and event streams send some of it, under the same
names. `tests/web/test_views.py` compares them.
"""

from collections.abc import Mapping
from typing import Any

from pgbeat.storable import is_deep

#: The fields of a noun.
View = dict[str, Any]


def readable(columns: View, if_deep: Mapping[str, Any]) -> View:
    """Returns columns with others in place of JSON that is nested too deeply, by their names."""
    return columns | {name: other for name, other in if_deep.items() if is_deep(columns[name])}
