"""Makes kombu and Celery know pgbeat even if no code imports it.

kombu has no plug-ins for transports, but loads those for serializers when it is first used, which
is while Celery is imported. This module is one, JSON by another name: importing it registers the
transport, and has Celery's apps send over it by pgbeat from their first message on.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

#: Encoder, decoder, content type and encoding, as kombu's registry takes them.
SERIALIZER = (json.dumps, json.loads, "application/x-pgbeat-json", "utf-8")


def register_transport() -> None:
    """Registers `pgbeat+postgresql://` with kombu, without loading the transport, or kombu."""
    _once_imported("kombu.transport", _add_aliases)


def _add_aliases(transport: Any) -> None:
    # kombu looks up the part before the plus, but after a failover the whole scheme.
    for scheme in ("", "+postgresql", "+postgres", "+postgresql+psycopg"):
        transport.TRANSPORT_ALIASES[f"pgbeat{scheme}"] = "pgbeat.broker.transport:Transport"


#: What each of Celery's apps calls as it is made.
_FIXUP = "pgbeat.alias:equip"


def follow_apps() -> None:
    """Equips the Celery apps that are made from now on, or once Celery has been imported."""
    _once_imported("celery.app.base", lambda apps: apps.Celery.builtin_fixups.add(_FIXUP))


def _once_imported(name: str, act: Callable[[Any], None]) -> None:
    """Calls `act` with a module: now, or as soon as it has been imported."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        sys.meta_path.insert(0, _Follower(name, act))
    else:
        act(module)


class _Follower:
    """Finds a module as ever, and acts once it has been executed."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, *args: Any) -> "ModuleSpec | None":
        """Returns the module's spec; no other module's."""
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, *args) for finder in others)), None)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def execute_and_follow(module: Any) -> None:
                execute(module)
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                self._act(module)

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
