"""Keys and values of attention: kept once per prefix, and grown in place for a batch.

It knows tensors and token ids, nothing of requests or sampling.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from attrs import frozen
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from fafo_run.item import Ids


@frozen
class PrefixState:
    """What attention needs of one prefix, as its tokens were computed."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Per layer keys and values, each [1, key heads, tokens, head size]."""

    @property
    def bytes(self) -> int:
        """Memory that the tensors take."""
        return sum(part.numel() * part.element_size() for pair in self.layers for part in pair)


class KeptPrefixes:
    """The states of the prefixes used last, up to a number of bytes; the newest is kept however large."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._states: OrderedDict[Ids, PrefixState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, ids: Ids) -> PrefixState | None:
        """Return the state of exactly these ids, or None."""
        state = self._states.get(ids)
        if state is not None:
            self._states.move_to_end(ids)
        return state

    def put(self, ids: Ids, state: PrefixState) -> None:
        """Keep a state, and drop those unused for longest until the rest fits."""
        self._states[ids] = state
        self._states.move_to_end(ids)
        while len(self._states) > 1 and sum(kept.bytes for kept in self._states.values()) > self._limit:
            self._states.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._states.clear()


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a batch: room for every token is taken once, so that a step copies only its own token."""

    def __init__(self, rows: int, room: int, prefix: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """`room` is in tokens, the prefix included."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._room, self._prefix = rows, room, prefix
        self._length = 0
        self._all_keys = self._all_values = torch.empty(0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [rows, heads, new tokens, size] and return all tokens so far, as views."""
        if not self.is_initialized:
            self._allocate(key_states, value_states)
        end = self._length + key_states.shape[-2]
        self._all_keys[:, :, self._length : end] = key_states
        self._all_values[:, :, self._length : end] = value_states
        self._length = end
        self.keys, self.values = self._all_keys[:, :, :end], self._all_values[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Return the tokens so far."""
        if not self.is_initialized and self._prefix is not None:
            return self._prefix[0].shape[-2]
        return self._length

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all rows but those with these numbers."""
        self._all_keys = self._all_keys[rows]
        self._all_values = self._all_values[rows]

    def _allocate(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self._all_keys = self._room_for(key_states)
        self._all_values = self._room_for(value_states)
        if self._prefix is not None:
            keys, values = self._prefix
            self._length = keys.shape[-2]
            self._all_keys[:, :, : self._length] = keys
            self._all_values[:, :, : self._length] = values
        self.is_initialized = True

    def _room_for(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = states.shape
        return states.new_empty((self._rows, heads, self._room, size))


class BatchCache(Cache):
    """The cache of `rows` prompts that all begin with `prefix`, with room for `room` tokens each."""

    def __init__(self, prefix: PrefixState | None, layers: int, rows: int, room: int) -> None:
        """`layers` is how many the model has."""
        pairs = prefix.layers if prefix is not None else (None,) * layers
        self._growing = [GrowingLayer(rows, room, pair) for pair in pairs]
        super().__init__(layers=list(self._growing))

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all rows but those with these numbers."""
        for layer in self._growing:
            layer.keep_rows(rows)


def state_of(cache: Cache) -> PrefixState:
    """Return what a cache of one row holds."""
    layers: list[Any] = cache.layers
    return PrefixState(tuple((layer.keys, layer.values) for layer in layers))
