"""Makes kombu and Celery know pgbeat even if no code imports it.

kombu has no plug-ins for transports, but loads those for serializers when it is first used, which
is while Celery is imported. This module is one, JSON by another name: importing it registers the
transport, and has Celery's apps send over it by pgbeat from their first message on.
"""

import json
import sys
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

#: Encoder, decoder, content type and encoding, as kombu's registry takes them.
SERIALIZER = (json.dumps, json.loads, "application/x-pgbeat-json", "utf-8")


def register_transport() -> None:
    """Registers `pgbeat+postgresql://` with kombu, without loading the transport."""
    # kombu looks up the part before the plus, but after a failover the whole scheme.
    for scheme in ("", "+postgresql", "+postgres", "+postgresql+psycopg"):
        TRANSPORT_ALIASES[f"pgbeat{scheme}"] = "pgbeat.broker.transport:Transport"


#: The module of Celery's apps, and what each app calls as it is made.
_APPS, _FIXUP = "celery.app.base", "pgbeat.alias:equip"


def follow_apps() -> None:
    """Equips the Celery apps that are made from now on, or once Celery has been imported."""
    apps: Any = sys.modules.get(_APPS)
    if hasattr(apps, "Celery"):
        apps.Celery.builtin_fixups.add(_FIXUP)
    else:
        sys.meta_path.insert(0, _AppsFinder())


class _AppsFinder:
    """Finds the module of Celery's apps as ever, and adds to it once it has been executed."""

    def find_spec(self, name: str, *args: Any) -> ModuleSpec | None:
        """Returns the module's spec, once; no other module's."""
        if name != _APPS:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def execute_and_follow(module: Any) -> None:
                execute(module)
                module.Celery.builtin_fixups.add(_FIXUP)

            loader.exec_module = execute_and_follow
        return spec


def equip(app: Any) -> None:
    """Has an app look at its broker when it sends its first task, and not before."""
    app.send_task = FirstSend(app)


class FirstSend:
    """An app's `send_task` until it is called."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Sends the task as the app does from now on."""
        app = self._app
        if isinstance(vars(app).get("send_task"), FirstSend):
            del app.send_task
            urls = app.conf.broker_transport, app.conf.broker_write_url, app.conf.broker_url
            if "pgbeat" in str(urls):
                import_module("pgbeat.broker.publishing.template_sender").equip(app)
        return app.send_task(*args, **options)
