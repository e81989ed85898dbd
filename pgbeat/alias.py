"""How kombu gets to know `pgbeat+postgresql://` where nobody imports pgbeat.

kombu has no plug-ins for transports, but loads those for serializers as soon as it is used. This
is one, JSON by another name; what matters is that importing it imports pgbeat, which registers
the transport.
"""

import json

#: Encoder, decoder, content type and encoding, as kombu's registry takes them.
SERIALIZER = (json.dumps, json.loads, "application/x-pgbeat-json", "utf-8")
