"""Which failures somebody asks for: by code, class and source."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from fafo_run.item import Failure, Record
from fafo_run.results.reader import ResultsReader
from fafo_run.run.view import View, check_names


@frozen
class Failed:
    """An item whose record that counts is a failure."""

    record: Record
    failure: Failure
    owner: str | None
    """The class that stands for its work now; None when none does: it is superseded."""

    @property
    def class_name(self) -> str:
        """The class as it is called now, else as it was."""
        return self.owner or self.record.provenance.class_name


@frozen
class Which:
    """A choice of failures; an empty part takes all."""

    codes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def of(self, view: View, results: ResultsReader) -> Iterator[Failed]:
        """Yield the failures that count and are chosen. `view` is of the whole project.

        Raises `DeclarationError` for a class that is neither declared nor named by any record.
        """
        was = {group.class_name: None for group in results.summary().groups}
        check_names("class", self.classes, dict.fromkeys(of.name for of in view.classes) | was)
        for record in results.failures():
            if isinstance(record.outcome, Failure):
                found = Failed(record, record.outcome, view.owner(record.provenance))
                if self._takes(found):
                    yield found

    def _takes(self, found: Failed) -> bool:
        return (
            (not self.codes or found.failure.code.value in self.codes)
            and (not self.classes or found.class_name in self.classes)
            and (not self.sources or found.record.provenance.source in self.sources)
        )
