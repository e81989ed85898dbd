"""Models of pgbeat's protocols, checked in every interleaving: `python -m tests.models`."""

from tests.models import chords, claims, events, finish, groups, lanes, leadership

MODELS = {
    "leadership": leadership,
    "claims": claims,
    "chords": chords,
    "finish": finish,
    "groups": groups,
    "lanes": lanes,
    "events": events,
}
