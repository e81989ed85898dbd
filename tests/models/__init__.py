"""Models of pgbeat's protocols, checked in every interleaving: `python -m tests.models`."""

from tests.models import finish, groups, lanes, leadership

MODELS = {"leadership": leadership, "finish": finish, "groups": groups, "lanes": lanes}
