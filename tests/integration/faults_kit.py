"""What the tests of faults share: a run in this process, and the proof that nothing was lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define, field, frozen

from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.item import Failure
from fafo_run.run.outcome import Outcome, Started
from fafo_run.run.plan import plan_run
from fafo_run.run.state import Snapshot
from fafo_run.run.store import RunReader
from fafo_run.run.supervisor import Supervisor
from fafo_run.run.view import items, open_view
from fafo_run.verify.check import verify
from tests.helpers import MAIN
from tests.serving import Faulty, Record, use_all

RUNNING = 8
"""`engine.max_running` of these tests."""
ATTEMPTS = 3
"""`run.attempts`, as it is by default."""
PACE = 0.002
"""Seconds per output token: with none, one server has done everything before the other is asked."""
SILENCE = 4.0
"""`engine.timeout_silence` in seconds: short, and long enough for a machine that does other things too."""

Outputs = Mapping[str, tuple[int, ...]]
"""Output ids by identity, in hex."""


@define
class Notes:
    """Hears what a run says."""

    notices: list[str] = field(factory=list)
    waited_for: set[str] = field(factory=set)

    def started(self, started: Started) -> None:
        """Nothing to note."""

    def tick(self, snapshot: Snapshot) -> None:
        """Note what the run waits for."""
        if snapshot.notice:
            self.waited_for.add(snapshot.notice)

    def notice(self, text: str) -> None:
        """Note it."""
        self.notices.append(text)


@frozen
class Recorded:
    """What a run's store holds, read by another way than the run wrote it."""

    outputs: Outputs
    failures: Mapping[str, str]
    """Codes by identity."""
    servers: Mapping[str, str]
    """Who answered, by identity."""
    complete: bool
    """Whether `fafo verify` finds every item of the view once, and nothing that is unsound."""
    view: frozenset[str]
    """Identities that there should be."""


@frozen
class Ended:
    """A run that came to its end."""

    outcome: Outcome
    notes: Notes
    recorded: Recorded


def ask_these(folder: Path, servers: Sequence[Faulty], main: str = MAIN, *, running: int = RUNNING) -> Path:
    """Let a project of `write_project` ask these servers."""
    return use_all(folder, servers, main, max_running=running, timeout_silence=SILENCE)


def run_here(folder: Path) -> Ended:
    """Do `fafo run` in this process."""
    project = load_project(folder)
    notes = Notes()
    plan = plan_run(open_view(project, load_baked(project)))
    outcome = Supervisor(plan, folder / "runs" / "main", notes).run()
    return Ended(outcome, notes, recorded(folder))


def recorded(folder: Path) -> Recorded:
    """Read what the run `main` of a project left."""
    project = load_project(folder)
    view = open_view(project, load_baked(project))
    outputs: dict[str, tuple[int, ...]] = {}
    failures, servers = {}, {}
    with RunReader.open(folder / "runs" / "main") as reader:
        complete = verify(view, reader, 0.0).completeness
        for record in reader.results.effective():
            name = record.identity.hex()
            servers[name] = record.server
            if isinstance(record.outcome, Failure):
                failures[name] = record.outcome.code.value
            else:
                outputs[name] = tuple(record.outcome.ids)
    sound = not (complete.doubled or complete.lost or complete.undecodable or complete.waiting)
    return Recorded(outputs, failures, servers, sound, frozenset(of.identity.hex() for of in items(view)))


def prove(
    ended: Recorded, expected: Outputs, servers: Sequence[Faulty], failures: Mapping[str, str] | None = None
) -> list[Record]:
    """Assert that every item of the view is there once, with the output that a sound server gives, or as one
    of these failures; and that the servers know of every answer. Return the servers' own records.
    """
    failures = failures or {}
    records = [server.record() for server in servers]
    assert ended.complete
    assert ended.failures == failures
    assert set(ended.outputs) == ended.view - set(failures)
    wrong = [name for name, ids in ended.outputs.items() if ids != expected[name]]
    assert not wrong, f"{len(wrong)} outputs differ from those of a sound server"
    by_url = {server.url: record for server, record in zip(servers, records, strict=True)}
    made_up = [name for name in ended.outputs if name not in by_url[ended.servers[name]].answered]
    assert not made_up, f"{len(made_up)} outputs by servers that didn't give them"
    return records


def asked(records: Sequence[Record]) -> Counter[str]:
    """Return how many requests each item cost, over all servers."""
    found: Counter[str] = Counter()
    for record in records:
        found.update({name: count for name, count in record.asked.items() if len(name) == 32})
    return found


def others(record: Record) -> int:
    """Return how many requests weren't for items: warm-ups and probes."""
    return sum(count for name, count in record.asked.items() if len(name) != 32)
