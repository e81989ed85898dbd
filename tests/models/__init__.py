"""Models of pgbeat's protocols, checked in every interleaving: `python -m tests.models`."""

from tests.models import chords, finish, groups, lanes, leadership

MODELS = {
    "leadership": leadership,
    "chords": chords,
    "finish": finish,
    "groups": groups,
    "lanes": lanes,
}
