"""Makes a store whole without starting a run, all of it walked, and says each thing before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import frozen

from fafo_build.project.declaration import Run
from fafo_run.log.actions import Action, Refuse, Sync, Tell
from fafo_run.log.directory import RunDirectory
from fafo_run.log.locking import busy, is_held
from fafo_run.log.recovery import to_do
from fafo_run.run.check import Checked, check, checked, look_at
from fafo_run.run.check_derived import Reindex, Retire
from fafo_run.run.store import RunStore


@frozen
class Repaired:
    """What a repair did, and what it left."""

    actions: tuple[Action, ...]
    """Done, in order."""
    left: Checked
    """A look at the store afterwards: what stays is beyond repair."""


def repair(folder: Path, settings: Run, say: Callable[[Action, bool], None]) -> Repaired:
    """Do what recovery does, with every segment walked, and what a clean stop does.

    `say` is told of each action before it is done, with False, and after, with True. Raises `StoreBusy` when
    a run works on the store, `StoreError` when no store is there, or one that only a person can mend.
    """
    look_at(folder)  # Raises when there is none: owning would make one.
    done: list[Action] = []

    def telling(actions: Iterable[Action], directory: RunDirectory) -> None:
        for action in actions:
            silent = isinstance(action, Sync | Tell | Refuse)
            if not silent:
                say(action, False)
            action.apply(directory)
            if not silent:
                done.append(action)
                say(action, True)

    directory = RunDirectory.own(folder, force=settings.network_file_system)
    try:
        telling(to_do(directory, thorough=True), directory)
        waiting = tuple(of for of in checked(directory).findings if isinstance(of, Reindex | Retire))
        for action in waiting:
            say(action, False)
        # These are done by whoever opens the two logs.
        store = RunStore.on(directory, settings)
    except BaseException:
        directory.close()
        raise
    try:
        if any(isinstance(action, Reindex) for action in waiting):
            store.results.reindex()
    except BaseException:
        store.close(clean=False)
        raise
    store.close(clean=True)
    for action in waiting:
        say(action, True)
    return Repaired((*done, *waiting), checked(RunDirectory.look(folder)))


def plan(folder: Path) -> tuple[Action, ...]:
    """Return what `repair` would do, in order, and change nothing. Raises as `repair` does.

    What the index needs is said of the segments as they are: once they are mended it may need nothing.
    """
    if is_held(folder / "LOCK"):
        raise busy(folder / "LOCK")
    return check(folder).repairs
