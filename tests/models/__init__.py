"""Models of pgbeat's protocols, checked in every interleaving: `python -m tests.models`."""

from tests.models import leadership

MODELS = {"leadership": leadership}
