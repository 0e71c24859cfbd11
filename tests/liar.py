"""A method that claims everything: every check of methods must catch it."""

from __future__ import annotations

import torch

import zonogpt
from zonogpt.methods.ledger import Ledger
from zonogpt.methods.method import Bounds


def let_method_e_claim_anything(monkeypatch, n_rows: int) -> None:  # type: ignore[no-untyped-def]
    lie = Bounds(torch.full((n_rows,), 5.0, dtype=torch.float64), Ledger())
    monkeypatch.setattr(type(zonogpt.METHODS["E"]), "bound_many", lambda self, model, specs, *rest: [lie] * len(specs))
