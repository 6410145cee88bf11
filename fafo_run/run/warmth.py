"""Which prefixes the engine's cache holds, as far as this run has seen."""

from __future__ import annotations

from fafo_run.engines.base import Engine, Prefix, WarmUp


class Warmth:
    """One finished warm-up per prefix, before its first burst.

    SGLang computes a new prefix once per request of a prefill batch, so that four requests that arrive
    together share nothing; only a prefix whose warm-up has finished is shared.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._warm: set[str] = set()
        self.done: list[WarmUp] = []
        """Every warm-up of this run, in order."""

    async def ensure(self, prefix: Prefix) -> None:
        """Return when the prefix is in the cache. Raises `Unavailable`."""
        if prefix.artifact not in self._warm:
            self.done.append(await self._engine.warm(prefix))
            self._warm.add(prefix.artifact)

    def forget(self) -> None:
        """Take nothing for warm any more: the engine may have started afresh."""
        self._warm.clear()
