"""Postgres as the models see it: sessions of READ COMMITTED whose processes may stop anywhere.

A program is a generator that yields statements; it may end by naming the program that follows. A
statement that chooses rows to lock takes its snapshot in one step. In a later one it gets its
locks, all at once, and reads what it locked as it is by then, and all else as it was
(EvalPlanQual). One that locks given rows, and reads no others, is a single step.
Between any two steps any other process may act, so that a process that is frozen is one of them.

A fault kills a process, or cuts a session: that rolls back, and frees its locks of both kinds, and
the process learns of it (`Lost`) at its next statement. The answer to a commit may be lost too.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Value = Any
Rows = tuple[tuple[str, Value], ...]


class Lost(Exception):
    """The session has ended; a commit under way may have succeeded."""


class View:
    """What a statement reads and writes; without a process, what is committed."""

    def __init__(
        self,
        snapshot: Mapping[str, Value],
        newest: Mapping[str, Value],
        memory: dict[str, Value],
        *,
        alive: frozenset[str] = frozenset(),
        mine: frozenset[str] = frozenset(),
        writes: dict[str, Value] | None = None,
        locked: frozenset[str] = frozenset(),
    ) -> None:
        self._snapshot, self.newest, self.memory = snapshot, newest, memory
        #: Advisory locks of all sessions, and of this one.
        self.alive, self.mine = alive, mine
        self.writes = {} if writes is None else writes
        #: The rows that the statement has locked.
        self.locked = locked
        #: The rows that it may read; `None`: all.
        self.reads: frozenset[str] | None = None

    def __getitem__(self, key: str) -> Value:
        if key in self.writes:
            return self.writes[key]
        assert self.reads is None or key in self.reads, f"reads {key} without a snapshot"
        return (self.newest if key in self.locked else self._snapshot).get(key)

    def __setitem__(self, key: str, value: Value) -> None:
        self.writes[key] = value  # `None` deletes

    def subquery(self) -> "View":
        """Returns what a subquery reads: also of what the statement has locked, its snapshot."""
        return View(self._snapshot, self.newest, self.memory, writes=self.writes)

    def keys(self, prefix: str) -> list[str]:
        """Returns the keys of the rows that begin so and are there."""
        keys = {*self._snapshot, *self.writes}
        return sorted(k for k in keys if k.startswith(prefix) and self[k] is not None)


class Statement(NamedTuple):
    """One statement, or a step in a process's memory if it `is_local`.

    `name` says what it stands for: `path: name`, or `path: name ~ words` of its source.
    """

    name: str
    run: Callable[[View], Value] = lambda view: None
    #: The rows that it locks, or chooses by its snapshot; `shares` and `skips` as in SQL.
    locks: tuple[str, ...] | Callable[[View], Iterable[str]] = ()
    shares: bool = False
    skips: bool = False
    #: Whether it commits, alone or with what came before.
    commits: bool = False
    #: What it waits for: another process polls, or is notified.
    when: Callable[[View], bool] | None = None
    #: Session locks that it takes.
    advisory: frozenset[str] = frozenset()
    #: Answers of which any may come.
    options: tuple[Value, ...] = ()
    is_local: bool = False


class Process(NamedTuple):
    """A process with its session: what it runs, and what it got so far."""

    program: str
    args: tuple[Value, ...] = ()
    answers: tuple[Value, ...] = ()
    writes: Rows = ()
    #: Rows, each with whether the lock is shared.
    locks: frozenset[tuple[str, bool]] = frozenset()
    advisory: frozenset[str] = frozenset()
    snapshot: Rows | None = None
    is_lost: bool = False

    def without_session(self, *, is_lost: bool) -> "Process":
        return Process(self.program, self.args, self.answers, is_lost=is_lost)


class State(NamedTuple):
    """All that is there. Its parts are known to the model, which compares them by identity."""

    rows: Rows
    memory: Rows
    processes: tuple[tuple[str, Process], ...]
    #: How many may still happen.
    faults: int

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for equal states."""
        rows, memory, processes, faults = self
        return (id(rows), id(memory), faults, *map(id, processes))


class Move(NamedTuple):
    label: str
    state: State
    #: The statement's name; `None` for a fault, and for what a process learns of one.
    name: str | None = None
    is_fault: bool = False


Program = Callable[..., Generator[Statement, Value, tuple[str, tuple[Value, ...]] | None]]
Invariant = Callable[[View], bool]

COMMIT = Statement("database/connections.py: transaction", commits=True)
_ROLL_BACK = COMMIT._replace(run=lambda view: view.writes.clear())


def roll_back() -> Generator[Statement, Value, None]:
    """Rolls back, if the session is still there to do so."""
    with suppress(Lost):
        yield _ROLL_BACK


def choice(name: str, *options: Value) -> Statement:
    """Returns a step that what is outside of the model decides."""
    return Statement(name, options=options, is_local=True)


@dataclass
class Model:
    """A protocol: programs, the processes that run them, and what must hold."""

    programs: Mapping[str, Program]
    processes: Mapping[str, Process]
    rows: Mapping[str, Value]
    always: Mapping[str, Invariant]
    #: What must hold where nothing is left to do.
    at_rest: Mapping[str, Invariant]
    memory: Mapping[str, Value] = field(default_factory=dict)
    faults: int = 1
    #: Processes that die together, and processes whose sessions may be cut.
    kills: tuple[tuple[str, ...], ...] = ()
    cuts: tuple[str, ...] = ()
    #: What is left of the memory of those that were killed.
    forget: Callable[[dict[str, Value], tuple[str, ...]], None] = lambda memory, names: None
    _next: dict[tuple[Value, ...], Any] = field(default_factory=dict)
    _known: dict[Any, Any] = field(default_factory=dict)
    #: What was found out, by the ids of the known values that it depends on.
    _found: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def known(self, value: T) -> T:
        """Returns the one object that stands for all that are equal to the value."""
        return self._known.setdefault(value, value)  # type: ignore[no-any-return]

    def start(self) -> State:
        processes = ((name, self._settle(p)) for name, p in self.processes.items())
        rows, memory = self._frozen(self.rows), self._frozen(self.memory)
        return State(rows, memory, tuple(map(self.known, processes)), self.faults)

    def failed(self, state: State, *, is_at_rest: bool) -> list[str]:
        """Returns the invariants that don't hold."""
        key = (id(state.rows), id(state.memory), self._held(state), is_at_rest)
        if key not in self._found:
            rows = dict(state.rows)
            view = View(rows, rows, dict(state.memory), alive=_alive(state))
            invariants = {**self.always, **(self.at_rest if is_at_rest else {})}
            self._found[key] = [name for name, holds in invariants.items() if not holds(view)]
        return self._found[key]  # type: ignore[no-any-return]

    def moves(self, state: State) -> tuple[list[Move], bool]:
        """Returns what may happen next, and whether processes wait for each other's row locks."""
        moves: list[Move] = []
        waits = False
        sees = (id(state.rows), id(state.memory), self._held(state), state.faults > 0)
        for place, process in enumerate(state.processes):
            key = (*sees, place, id(process))
            if key not in self._found:
                self._found[key] = self._own_moves(state, *process)
            own, has_to_wait = self._found[key]
            # They may have been found where other processes were elsewhere in their programs.
            before, after = state.processes[:place], state.processes[place + 1 :]
            for label, (rows, memory, processes, _), name, is_fault in own:
                processes = (*before, processes[place], *after)
                changed = State(rows, memory, processes, state.faults - is_fault)
                moves.append(Move(label, changed, name, is_fault))
            waits = waits or has_to_wait
        is_stuck = waits and not moves
        if state.faults:
            moves += self._faults(state)
        return moves, is_stuck

    def _held(self, state: State) -> int:
        """Returns the same for the same locks of all sessions."""
        return id(self.known(tuple([(p.locks, p.advisory) for _, p in state.processes])))

    def _own_moves(self, state: State, name: str, process: Process) -> tuple[list[Move], bool]:
        """Returns what a process may do next, and whether it waits for a row lock."""
        statement = self._statement(process)
        if statement is None:
            return [], False
        if process.is_lost and not statement.is_local:
            told = self._with(state, name, self._answered(process._replace(is_lost=False), Lost))
            return [Move(f"{name}: learns that its session is lost", told)], False
        own = list(self._execute(state, name, process, statement))
        is_idle = statement.when is not None and process.snapshot is None
        return own, not (own or is_idle or not statement.locks)

    def _execute(
        self, state: State, name: str, process: Process, statement: Statement
    ) -> Iterator[Move]:
        newest, label = dict(state.rows), f"{name}: {statement.name}"
        snapshot = newest if process.snapshot is None else dict(process.snapshot)
        alive = _alive(state)
        if statement.advisory & (alive - process.advisory):
            return
        view = View(
            snapshot, newest, dict(state.memory),
            alive=alive, mine=process.advisory, writes=dict(process.writes),
        )  # fmt: skip
        if process.snapshot is None and statement.when is not None and not statement.when(view):
            return
        locks = process.locks
        if statement.locks:
            if callable(statement.locks) and process.snapshot is None:
                begun = process._replace(snapshot=state.rows)
                yield Move(f"{label} … begins", self._with(state, name, begun), statement.name)
                return
            others = _locks_of_others(state, name)
            wanted = set(statement.locks(view) if callable(statement.locks) else statement.locks)
            free = {key for key in wanted if _is_free(key, others, is_shared=statement.shares)}
            if free != wanted and not statement.skips:
                return
            view.locked = frozenset(free)
            if not callable(statement.locks):
                view.reads = frozenset(wanted | {key for key, _ in locks})
            locks = locks | {(key, statement.shares) for key in free}
        for option in statement.options or (None,):
            answer = option if statement.options else statement.run(view)
            yield from self._done(state, name, process, statement, view, locks, answer, label)

    def _done(
        self, state: State, name: str, process: Process, statement: Statement, view: View,
        locks: frozenset[tuple[str, bool]], answer: Value, label: str,
    ) -> Iterator[Move]:  # fmt: skip
        if statement.options:
            label += f" → {answer}"
        others = _locks_of_others(state, name)
        own = {key for key, is_shared in locks if not is_shared}
        written = {key for key in view.writes if key not in own}
        assert all(_is_free(key, others, is_shared=False) for key in written), (label, written)
        locks |= {(key, False) for key in written}
        after = state._replace(memory=self._frozen(view.memory))
        session = process._replace(
            writes=self._frozen(view.writes),
            locks=locks,
            advisory=process.advisory | statement.advisory,
            snapshot=None,
        )
        if statement.commits:
            rows = {**dict(state.rows), **view.writes}
            after = after._replace(
                rows=self._frozen({k: v for k, v in rows.items() if v is not None})
            )
            session = session._replace(writes=(), locks=frozenset())
        yield Move(label, self._with(after, name, self._answered(session, answer)), statement.name)
        if statement.commits and view.writes and state.faults and name in self.cuts:
            told = self._answered(process.without_session(is_lost=False), Lost)
            unheard = self._with(after, name, told)._replace(faults=state.faults - 1)
            yield Move(f"{label} … and the answer is lost", unheard, is_fault=True)

    def _faults(self, state: State) -> Iterator[Move]:
        after = state._replace(faults=state.faults - 1)
        processes = dict(state.processes)
        for name in self.cuts:
            p = processes.get(name)
            if p and (p.writes or p.locks or p.advisory or p.snapshot is not None):
                cut = p.without_session(is_lost=True)
                yield Move(
                    f"{name}: its session is cut", self._with(after, name, cut), is_fault=True
                )
        for names in self.kills:
            if all(name in processes for name in names):
                memory = dict(state.memory)
                self.forget(memory, names)
                left = tuple(own for own in state.processes if own[0] not in names)
                killed = after._replace(processes=left, memory=self._frozen(memory))
                yield Move(f"{' and '.join(names)}: killed", killed, is_fault=True)

    def _frozen(self, items: Mapping[str, Value]) -> Rows:
        return self.known(tuple(sorted(items.items())))

    def _with(self, state: State, name: str, process: Process) -> State:
        own = self.known((name, process))
        return state._replace(processes=tuple(own if p[0] == name else p for p in state.processes))

    # ----- programs

    def _statement(self, process: Process) -> Statement | None:
        """Returns what a process does next; `None` if it has ended."""
        found = self._replayed(process)
        return found if isinstance(found, Statement) else None

    def _answered(self, process: Process, answer: Value) -> Process:
        return self._settle(process._replace(answers=(*process.answers, answer)))

    def _settle(self, process: Process) -> Process:
        """Returns the process in the program that follows, if its own has ended."""
        while isinstance(found := self._replayed(process), tuple) and not isinstance(
            found, Statement
        ):
            process = process._replace(program=found[0], args=found[1], answers=())
        return process

    def _replayed(self, process: Process) -> Any:
        key = (process.program, process.args, process.answers)
        if key not in self._next:
            self._next[key] = self._replay(process)
        return self._next[key]

    def _replay(self, process: Process) -> Any:
        running = self.programs[process.program](*process.args)
        try:
            statement = next(running)
            for answer in process.answers:
                statement = running.throw(Lost()) if answer is Lost else running.send(answer)
        except StopIteration as ended:
            return ended.value
        except Lost:
            return None
        return statement


def _alive(state: State) -> frozenset[str]:
    return frozenset().union(*(process.advisory for _, process in state.processes))


def _locks_of_others(state: State, name: str) -> set[tuple[str, bool]]:
    return {lock for n, process in state.processes if n != name for lock in process.locks}


def _is_free(key: str, others: set[tuple[str, bool]], *, is_shared: bool) -> bool:
    return (key, False) not in others and (is_shared or (key, True) not in others)
