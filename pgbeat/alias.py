"""Registers `pgbeat+postgresql://` with kombu even if no code imports pgbeat.

kombu has no plug-ins for transports, but loads those for serializers when it is first used. This
module is one, JSON by another name: importing it registers the transport.
"""

import json

from kombu.transport import TRANSPORT_ALIASES

#: Encoder, decoder, content type and encoding, as kombu's registry takes them.
SERIALIZER = (json.dumps, json.loads, "application/x-pgbeat-json", "utf-8")


def register_transport() -> None:
    """Registers `pgbeat+postgresql://` with kombu, without loading the transport."""
    # kombu looks up the part before the plus, but after a failover the whole scheme.
    for scheme in ("", "+postgresql", "+postgres", "+postgresql+psycopg"):
        TRANSPORT_ALIASES[f"pgbeat{scheme}"] = "pgbeat.broker.transport:Transport"
