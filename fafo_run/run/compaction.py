"""Compacts a run's results, by what its view stands for and what its queue still needs."""

from __future__ import annotations

from pathlib import Path

from fafo_build.project.declaration import Run
from fafo_run.queue.reader import QueueReader
from fafo_run.results.compact import Compaction, Unwanted
from fafo_run.run.repair import repair
from fafo_run.run.store import RunReader, RunStore
from fafo_run.run.view import View


def compact(
    folder: Path, settings: Run, view: View | None, *, failed: bool, damaged: bool, dry_run: bool
) -> Compaction:
    """Rewrite the results of a run that nobody uses without superseded failures, or say what would go.

    With a view, records of work that none of its project's classes stands for go too; with `failed`, failures
    that count; with `damaged`, bytes that are no entry, once quarantine/ has them. Raises `StoreBusy` unless
    it is a `dry_run`, and `StoreError`.
    """
    if dry_run:
        with RunReader.open(folder) as reader:
            return reader.results.plan_compaction(
                _unwanted(reader.queue, view, failed=failed, damaged=damaged)
            )
    if damaged:
        repair(folder, settings, lambda action, done: None)
    store = RunStore.open_existing(folder, settings)
    clean = False
    try:
        store.queue.collect()
        queue = QueueReader(store.directory)
        done = store.results.compact(_unwanted(queue, view, failed=failed, damaged=damaged))
        clean = True
    finally:
        store.close(clean=clean)
    return done


def _unwanted(queue: QueueReader, view: View | None, *, failed: bool, damaged: bool) -> Unwanted:
    # An item that is in the queue as done, and has no record, would be a lost one.
    held = frozenset(queue.retired()) if failed or view is not None else frozenset()
    if view is None:
        return Unwanted(failed=failed, held=held, damaged=damaged)
    return Unwanted(failed=failed, held=held, damaged=damaged, work=lambda of: view.owner(of) is None)
