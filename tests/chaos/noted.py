"""Faults that are under way, and those that were: who has one, and what is noted of each."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from tests.chaos.record import Fault, note
from tests.chaos.site import POOLED, WORKERS, Site, now


class Noted:
    """Notes each fault; long ones overlap, but of a member one only."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.chance = random.Random(seed)  # noqa: S311
        self._under_way: list[threading.Thread] = []
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def calm(self) -> None:
        """Mends everything that is still under way."""
        self._calm.set()
        for thread in self._under_way:
            thread.join(60)
        self._under_way.clear()
        self.site.revive()

    def _nodes(self, role: str) -> list[str]:
        names = sorted(POOLED) if role == "pooler" else [role]
        return [self.site.node(name) if name in WORKERS else name for name in names]

    def _free(self, *names: str) -> str | None:
        """One of the members that no other fault has; marks none."""
        free = [name for name in names if name not in self._busy]
        return self.chance.choice(free) if free else None

    def _take(self, name: str) -> bool:
        with self._lock:
            if name in self._busy:
                return False
            self._busy.add(name)
            return True

    def _go_on(self, what: Callable[[], None], name: str | None) -> None:
        """Runs the rest of a fault on a thread of its own, and keeps others off its member."""
        if name is not None:
            self._busy.add(name)

        def run() -> None:
            try:
                what()
            finally:
                if name is not None:
                    self._busy.discard(name)

        thread = threading.Thread(target=run, daemon=True)
        self._under_way.append(thread)
        thread.start()

    def _note(self, kind: str, whom: str, began: float) -> None:
        fault = Fault(kind, whom, began, now())
        with self._lock:
            note(self.site.folder, "faults", asdict(fault))
        print(f"{time.strftime('%H:%M:%S')} {whom}: {kind}", flush=True)
