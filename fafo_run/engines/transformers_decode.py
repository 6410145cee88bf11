"""Runs a causal language model on token ids: prefixes once, then batches of suffixes. One thread uses it.

It knows nothing of the event loop or of what an engine promises; those are `transformers`'s business.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from transformers import Cache, DynamicCache, PreTrainedModel

from fafo_build.project.declaration import Sampling
from fafo_run.engines.transformers_cache import (
    BatchCache,
    KeptPrefixes,
    PrefixState,
    state_of,
)
from fafo_run.engines.transformers_sampling import key, next_tokens, penalised
from fafo_run.item import FinishReason, Ids

_WORTH_DROPPING = 0.25
"""Share of finished rows from which copying the others costs less than computing on."""


class CancelledError(Exception):
    """The caller no longer waits for the answer."""


@frozen
class Prompt:
    """One prompt to go on with; its prefix is given beside it."""

    suffix: Ids
    sampling: Sampling
    seed: int


@frozen
class Generated:
    """What the model said."""

    ids: Ids
    finish_reason: FinishReason | None
    """None when the model's numbers overflowed, and nothing can be said."""
    cached_tokens: int
    """Prompt tokens whose keys and values were there before this call."""


@define
class _Row:
    """A prompt on its way."""

    prompt: Prompt
    ids: list[int] = field(factory=list)
    finish_reason: FinishReason | None = None
    ended: bool = False

    def take(self, token: int | None, ends: frozenset[int]) -> None:
        """Append a token, or end without one."""
        if token is None:
            self.ended = True
            return
        self.ids.append(token)
        if token in ends or token in self.prompt.sampling.stop_token_ids:
            self.finish_reason = FinishReason("stop", token)
        elif len(self.ids) == self.prompt.sampling.max_new_tokens:
            self.finish_reason = FinishReason("length")
        self.ended = self.finish_reason is not None


class Decoder:
    """A loaded model with its kept prefixes."""

    def __init__(self, model: PreTrainedModel, eos_ids: Collection[int], keep_bytes: int) -> None:
        """`keep_bytes` bounds the memory for kept prefixes."""
        self._model = model
        self._ends = frozenset(eos_ids)
        self._layers = len(DynamicCache(config=model.config).layers)
        # The cache's parameter had another name before transformers 5.20.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.kept = KeptPrefixes(keep_bytes)

    def warm(self, prefix: Ids) -> bool:
        """Keep the prefix; return whether it was kept before."""
        _, known = self._prefix(prefix)
        return known

    @torch.inference_mode()
    def generate(self, prefix: Ids, prompts: Sequence[Prompt], cancelled: threading.Event) -> list[Generated]:
        """Answer all prompts, which begin with `prefix` each; at least one token of each is no prefix.

        Raises `CancelledError` soon after `cancelled` is set.
        """
        state, known = self._prefix(prefix)
        batch = _Batch.of(prefix, prompts, self._model.device)
        cache = BatchCache(state, self._layers, len(prompts), batch.room)
        rows = [_Row(prompt) for prompt in prompts]
        self._decode(batch, cache, list(rows), cancelled)
        counts = batch.cached_tokens if known else [0] * len(prompts)
        return [
            Generated(tuple(row.ids), row.finish_reason, count)
            for row, count in zip(rows, counts, strict=True)
        ]

    def _decode(self, batch: _Batch, cache: BatchCache, rows: list[_Row], cancelled: threading.Event) -> None:
        """Go on until every row has ended; `rows[i]` is row i of the batch, and ended rows may stay in it."""
        ids, positions, mask = batch.ids, batch.positions, batch.first_mask()
        length = batch.first_length
        while True:
            if cancelled.is_set():
                raise CancelledError
            logits = self._forward(ids, positions, mask, cache)
            alive = self._choose(rows, logits)
            if not alive:
                return
            if len(alive) <= len(rows) * (1 - _WORTH_DROPPING):
                kept = torch.tensor(alive, device=ids.device)
                cache.keep_rows(kept)
                batch.keep_rows(kept)
                positions = positions[kept]
                rows = [rows[number] for number in alive]
            ids = torch.tensor([row.ids[-1:] or [0] for row in rows], device=ids.device)
            positions = positions[:, -1:] + 1
            length += 1
            mask = batch.visible[:, None, None, :length]

    def _choose(self, rows: list[_Row], logits: torch.Tensor) -> list[int]:
        """Give every row that goes on its next token; return the numbers of those that go on further."""
        # An overflow in a model's arithmetic shows as a maximum that is no number.
        finite = torch.isfinite(logits.amax(dim=-1)).tolist()
        samplings = [row.prompt.sampling for row in rows]
        logits = penalised(logits, samplings, [row.ids for row in rows])
        keys = [key(row.prompt.seed, len(row.ids)) for row in rows]
        tokens = next_tokens(logits, samplings, keys).tolist()
        for row, token, usable in zip(rows, tokens, finite, strict=True):
            if not row.ended:
                row.take(token if usable else None, self._ends)
        return [number for number, row in enumerate(rows) if not row.ended]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        """Return the logits after each row's last token, [rows, vocabulary]."""
        output: Any = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    @torch.inference_mode()
    def _prefix(self, prefix: Ids) -> tuple[PrefixState | None, bool]:
        """Return the prefix's state, and whether it was kept before."""
        if not prefix:
            return None, False
        state = self.kept.get(prefix)
        if state is not None:
            return state, True
        cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([prefix], device=self._model.device)
        positions = torch.arange(len(prefix), device=ids.device)[None]
        self._forward(ids, positions, None, cache)
        state = state_of(cache)
        self.kept.put(prefix, state)
        return state, False


@define
class _Batch:
    """The suffixes of a batch, padded on the left so that they end together."""

    ids: torch.Tensor
    """[rows, longest suffix]; 0 where there is nothing."""
    positions: torch.Tensor
    """[rows, longest suffix]."""
    visible: torch.Tensor
    """[rows, room]: whether a token may be attended to by those after it."""
    prefix: int
    """Tokens."""
    cached_tokens: list[int]
    """Per row, tokens of the prefix that are not computed again."""

    @classmethod
    def of(cls, prefix: Ids, prompts: Sequence[Prompt], device: torch.device) -> _Batch:
        """Lay out the prompts."""
        # A prompt that is only the prefix computes its last token again: something must give the logits.
        suffixes = [prompt.suffix or prefix[-1:] for prompt in prompts]
        cached = [len(prefix) if prompt.suffix else len(prefix) - 1 for prompt in prompts]
        longest = max(map(len, suffixes))
        pads = [longest - len(suffix) for suffix in suffixes]
        room = len(prefix) + longest + max(prompt.sampling.max_new_tokens for prompt in prompts)
        visible = torch.ones((len(prompts), room), dtype=torch.bool)
        for row, (pad, known) in enumerate(zip(pads, cached, strict=True)):
            visible[row, known : len(prefix) + pad] = False
        ids = [[0] * pad + list(suffix) for pad, suffix in zip(pads, suffixes, strict=True)]
        # Padding gets position 0: it is computed like a token, and nothing ever looks at it.
        positions = torch.arange(longest)[None] - torch.tensor(pads)[:, None] + torch.tensor(cached)[:, None]
        positions = positions.where(torch.arange(longest)[None] >= torch.tensor(pads)[:, None], 0)
        return cls(
            torch.tensor(ids, device=device),
            positions.to(device),
            visible.to(device),
            len(prefix),
            cached,
        )

    @property
    def room(self) -> int:
        """Tokens per row: prefix, longest suffix and longest output."""
        return self.visible.shape[1]

    @property
    def first_length(self) -> int:
        """Tokens per row after the suffixes."""
        return self.prefix + self.ids.shape[1]

    def first_mask(self) -> torch.Tensor:
        """Return which token of the suffixes may attend to which, [rows, 1, suffix, prefix + suffix]."""
        length = self.first_length
        queries = torch.arange(self.prefix, length, device=self.ids.device)[:, None]
        keys = torch.arange(length, device=self.ids.device)[None]
        seen = self.visible[:, None, :length] & (keys <= queries)
        # Every token sees itself, padding too: a softmax over nothing is no number, and would spread.
        return (seen | (keys == queries))[:, None]

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all rows but those with these numbers."""
        self.visible = self.visible[rows]
