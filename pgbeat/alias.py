"""Makes kombu and Celery know pgbeat even if no code imports it.

kombu has no plug-ins for transports, but loads those for serializers when it is first used, which
is while Celery is imported. This module is one, JSON by another name: importing it imports pgbeat.
"""

import json

#: Encoder, decoder, content type and encoding, as kombu's registry takes them.
SERIALIZER = (json.dumps, json.loads, "application/x-pgbeat-json", "utf-8")
