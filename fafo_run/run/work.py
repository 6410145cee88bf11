"""What a claim asks of an engine, and what its completion becomes: requests and records of a view's classes.

It knows what every server is, and nothing of how one is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from fafo_run.engines.base import Answer, Capabilities, Completion, Prefix, Request
from fafo_run.item import Claim, Provenance, Record
from fafo_run.run import records
from fafo_run.run.view import ClassView, View


class Work:
    """Not thread-safe."""

    def __init__(self, view: View, context: int) -> None:
        """`context` is how many tokens prompt and output may have together at every server."""
        self._view = view
        self._classes = {of.name: of for of in view.classes}
        self._context = context
        self._prefixes = {of.name: Prefix(of.artifact.hash, of.artifact.prefix) for of in view.classes}
        self._provenance: dict[tuple[str, str, str], tuple[Capabilities, Provenance]] = {}
        """By class, source and server; one object each, so that the results pack it once."""

    def prefix(self, claim: Claim) -> Prefix:
        """Return the prefix of a claim's class; one object each."""
        return self._prefixes[self._class_of(claim).name]

    def request(self, claim: Claim) -> Request:
        """Return what an engine is asked."""
        item, of = claim.item, self._class_of(claim)
        prefix = self._prefixes[of.name]
        return Request(item.identity, claim.attempt, prefix, item.suffix.ids, of.sampling, item.seed)

    def unsendable(self, claim: Claim, server: Capabilities) -> Record | None:
        """Return the failure of a claim that no server can be asked for; None when it can be sent."""
        wanted = self._class_of(claim).sampling.max_new_tokens
        failure = claim.item.failure or records.too_long(claim, wanted, self._context)
        return None if failure is None else records.unsendable(claim, self._shared(claim, server), failure)

    def ceiling(self, claim: Claim, server: Capabilities) -> int:
        """Return how many of a claim's prompt tokens a warm cache of this server serves."""
        return records.ceiling(self.prefix(claim).ids, claim.item.prompt_tokens, server.page_size)

    def completed(self, claim: Claim, completion: Completion, server: Capabilities) -> Record:
        """Return the record of what a server answered."""
        shared = self._shared(claim, server)
        if isinstance(completion, Answer):
            return records.answered(claim, completion, shared, self.ceiling(claim, server))
        return records.rejected(claim, completion, shared)

    def exhausted(
        self, claim: Claim, server: Capabilities, history: Sequence[records.Lost], attempts: int
    ) -> Record:
        """Return the record of an item that so many attempts brought no output for: `history` says why."""
        return records.exhausted(claim, self._shared(claim, server), history, attempts)

    def _class_of(self, claim: Claim) -> ClassView:
        """Return the class that stands for this work now; the queue hands out no other."""
        return self._classes[self._view.owner(claim.item.provenance) or ""]

    def _shared(self, claim: Claim, server: Capabilities) -> Provenance:
        of, source = self._class_of(claim), claim.item.provenance.source
        known = self._provenance.get((of.name, source, server.server))
        if known is None or known[0] is not server:  # It may have come back with other settings.
            known = server, records.provenance(of, source, server)
            self._provenance[of.name, source, server.server] = known
        return known[1]
