"""The prefix cache: tokens before the first that moves. Later tokens see their keys and values, which only rounding
changes.

So these tokens go through the network as sets without symbols, once for all inputs of a run that begin alike, whatever
moves behind them and however far.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.methods.method import NonFiniteBlockError, NotEnoughMemoryError
from zonogpt.methods.plan import known_token_bytes, still_token_bytes
from zonogpt.methods.start import Start, around, embedded_centre
from zonogpt.methods.walk import Walk
from zonogpt.methods.work import Tick, nobody
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.support.memory import free_bytes
from zonogpt.support.tensors import moved
from zonogpt.transforms.prefix import Prefix

# The name of a sequence: a digest of each of its tokens, so that sequences begin alike exactly if their names do.
Name = bytes
DIGEST = hashlib.sha256().digest_size


def n_tokens(name: Name) -> int:
    return len(name) // DIGEST


def first_moving(model: Model, spec: Spec) -> int:
    """The first token that can move; 0 where tokens see later ones, and so depend on all that move."""
    return spec.input.first_moving() if model.causal else 0


@dataclass(frozen=True)
class CachedPrefix:
    """One sequence of p tokens."""

    seen: dict[int, Prefix]  # by block: the tokens as later ones see them in attention, a batch of one
    last: tuple[Tensor, Tensor] | None  # (p, d) and (p, d, d): centre and Gram at the head, where it reads all tokens


@dataclass(frozen=True)
class BatchPrefix:
    """The tokens before those of a Start, for its whole batch."""

    cached: list[CachedPrefix]  # the sequences that inputs begin with, of T tokens together
    index: Tensor  # (B, p): which of the T tokens an input has; at padding any of them

    def seen(self, t: int) -> Prefix:
        return Prefix.joined([one.seen[t] for one in self.cached]).select(self.index)

    def at_the_head(self) -> EllipsoidalZonotope:
        lasts = [one.last for one in self.cached if one.last is not None]
        c, Q = (torch.cat(parts)[self.index] for parts in zip(*lasts, strict=True))
        return EllipsoidalZonotope(c, torch.zeros_like(c)[:, :, None], Q, math.inf)


@dataclass
class PrefixCache:
    """The sequences that the inputs of a run begin with, propagated through the network and cached.

    A sequence is propagated when it is first asked for, in a group of up to `together` tokens, padding included; at
    most `most_tokens` tokens are cached. If | marks where tokens begin to move, inputs a b | c and a b | d share the
    sequence a b. An input a b c | makes all three share a b c, if that goes through the network without failing.
    """

    model: Model
    arithmetic: Arithmetic = "real"
    together: int = 1
    most_tokens: int = 0
    _spec: dict[Name, Spec] = field(default_factory=dict)  # an input that begins with it
    _longest: dict[Name, Name] = field(default_factory=dict)  # the longest sequence that begins with it
    _group: dict[Name, list[Name]] = field(default_factory=dict)  # for each of these: those that are propagated with it
    _cached: dict[Name, CachedPrefix] = field(default_factory=dict)

    def expect(self, specs: Sequence[Spec]) -> None:
        """Announces specs whose beginnings will be asked for, so that they can share sequences and groups."""
        some = [spec for spec in specs if first_moving(self.model, spec) > 0]
        self._expect({self._name(moved(spec, self.model.device, torch.float64)): spec for spec in some})

    @property
    def most_bytes(self) -> int:
        """The bytes that the cached prefixes may take."""
        tokens = sum(n_tokens(name) for name in set(self._longest.values()))
        return min(tokens, self.most_tokens) * known_token_bytes(self.model)

    def of(self, specs: Sequence[Spec], start: Start, limit: int, tick: Tick = nobody) -> BatchPrefix | None:
        """The tokens before those of `start`; None if there are none."""
        if start.before == 0:
            return None
        names = [self._name(spec) for spec in specs]
        new = {name: spec for name, spec in zip(names, specs, strict=True) if name and name not in self._longest}
        if new:
            self._expect(new)
        found = {name: self._sequence(name, limit, tick) for name in names if name}
        longest = [self._longest[name] if name else None for name in names]  # None: only padding is before it
        cached = {self._longest[name]: sequence for name, sequence in found.items()}
        begins = dict(zip(cached, accumulate(map(n_tokens, cached), initial=0), strict=False))
        device = self.model.device
        begin = torch.tensor([0 if name is None else begins[name] for name in longest], device=device)
        # A token's number in its own input, negative for padding. The input begins with all of them that are not.
        token = torch.arange(start.before, device=device) - torch.tensor(start.padding, device=device)[:, None]
        return BatchPrefix(list(cached.values()), begin[:, None] + token.clamp(min=0))

    def _name(self, spec: Spec) -> Name:
        count = first_moving(self.model, spec)
        if count == 0:
            return b""
        tokens = torch.stack([x[:count] for x in embedded_centre(spec.input, self.arithmetic)], dim=1)
        return b"".join(hashlib.sha256(token.tobytes()).digest() for token in tokens.cpu().numpy())

    def _expect(self, specs: Mapping[Name, Spec]) -> None:
        self._spec = {**specs, **self._spec}
        names = sorted(self._spec)  # right behind each comes one that begins with it, if any does
        following = dict(pairwise(names))
        for name in reversed(names):
            longer = following.get(name, b"").startswith(name)
            self._longest[name] = self._longest[following[name]] if longer else name
        group: list[Name] = []
        for name in sorted(set(self._longest.values()) - self._group.keys(), key=lambda name: (-len(name), name)):
            if group and (len(group) + 1) * n_tokens(group[0]) > self.together:
                group = []
            group.append(name)
            self._group[name] = group

    def _sequence(self, name: Name, limit: int, tick: Tick = nobody) -> CachedPrefix:
        """The longest sequence that begins with `name`; or, if that fails, `name` itself: no input fails for others."""
        longest = self._longest[name]
        if longest in self._cached:
            return self._cached[longest]
        group, alone = self._group[longest], self._group[longest] == [name]
        try:
            if not alone:
                self._require_memory(group)
            found = self._through_the_network(group, limit, tick)
        except (NonFiniteBlockError, NotEnoughMemoryError, torch.OutOfMemoryError):
            if alone:
                raise
            if len(group) > 1:
                self._group |= {other: [other] for other in group}
            else:
                self._longest[name], self._group[name] = name, [name]
            return self._sequence(name, limit, tick)
        self._cached |= found
        while sum(map(n_tokens, self._cached)) > max(self.most_tokens, sum(map(n_tokens, group))):
            del self._cached[next(iter(self._cached))]  # the oldest one
        return found[longest]

    def _require_memory(self, group: list[Name]) -> None:
        """NotEnoughMemoryError if the group needs more than is free. A sequence alone is in the plan of its input."""
        model, length = self.model, n_tokens(group[0])
        need = len(group) * length * still_token_bytes(model.width, model.n_heads, model.hidden, length)
        if need > free_bytes(model.device):
            raise NotEnoughMemoryError

    def _through_the_network(self, group: list[Name], limit: int, tick: Tick = nobody) -> dict[Name, CachedPrefix]:
        """Propagates a group. Shorter sequences are padded at their end, where no token of theirs sees it."""
        model = self.model
        lengths = [n_tokens(name) for name in group]
        here = [moved(self._spec[name], model.device, torch.float64) for name in group]
        pairs = [embedded_centre(spec.input, self.arithmetic) for spec in here]
        c, box = (
            torch.stack(
                [torch.cat([x[:p], x[:1].expand(max(lengths) - p, -1)]) for x, p in zip(xs, lengths, strict=True)]
            )
            for xs in zip(*pairs, strict=True)
        )
        z = around(c, box, model.dtype, torch.zeros_like(c, dtype=model.dtype)[:, :, None], math.inf)
        every = not model.head.reads_last
        walk = Walk(model, limit, self.arithmetic, tick=tick)
        seen: dict[int, Prefix] = {}
        at_the_head = z
        for t, behind, step in walk.steps(z, len(model.blocks) if every else walk.last_attention + 1):
            at_the_head = behind
            if (tokens := step.as_prefix) is not None:
                seen[t] = tokens
        return {
            name: CachedPrefix(
                {t: x.part(i, p) for t, x in seen.items()},
                (at_the_head.c[i, :p].clone(), at_the_head.Q[i, :p].clone()) if every else None,
            )
            for i, (name, p) in enumerate(zip(group, lengths, strict=True))
        }
