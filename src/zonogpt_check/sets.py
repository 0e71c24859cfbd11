"""The sets that a certificate speaks of, and the few facts about ellipsoids that the proof rests on.

    x_s = c_s + sum_j G_sj eps_j + phi_s,    ||eps||_p <= 1 shared by all tokens s,    phi_s in E(Q_s)

E(Q) = {y : w.y <= sqrt(w^T Q w) for every w}. Linear maps act exactly: y -> y A sends Q to A^T Q A. For any positive t,
(sum t) sum_i Q_i / t_i contains the sum of the E(Q_i) (Cauchy-Schwarz). Bounds are balls: their upper ends count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball, U, gamma, smaller


class InvalidError(Exception):
    """A line of the certificate does not hold; the message says which."""


class UnreadableError(Exception):
    """A file is not what it should be, so that nothing can be said about its content."""


def demand(holds: bool, otherwise: str, error: type[Exception] = InvalidError) -> None:
    if not holds:
        raise error(otherwise)


@dataclass(frozen=True)
class Set:
    """c and Q as the certificate has them; G as computed here, with its rounding in Q. Plain floats, exact."""

    c: Array  # (S, d)
    G: Array  # (S, m, d)
    Q: Array  # (S, d, d)
    p: float

    def radius(self) -> Ball:
        """(S, d): bounds |x - c|."""
        return dual(Ball(self.G), self.p, 1) + Ball(self.Q).diagonal().sqrt()


def dual(values: Ball, p: float, axis: int) -> Ball:
    """The largest |sum_j values_j eps_j| over ||eps||_p <= 1, j along `axis`."""
    if p == math.inf:
        return abs(values).sum(axis)
    return values.square().sum(axis).sqrt() if p == 2 else abs(values).max(axis)


def support(Q: Ball, w: Ball) -> Ball:
    """sqrt(w^T Q w) for Q (..., d, d) and directions w (..., k, d): (..., k)."""
    return ((w @ Q) * w).sum(-1).sqrt()


def image(Q: Ball, A: Ball) -> Ball:
    return A.T @ Q @ A


def over(w: Ball, box: Ball) -> Ball:
    """(R,): the largest value of functionals (R, S, d) on what moves by at most `box` (S, d)."""
    return (abs(w) * box).sum(-1).sum(-1)


def box_gram(b: Ball) -> Ball:
    """{y : |y_k| <= b_k} is in E(diag(b_k sum_l b_l))."""
    b = Ball(b.upper())
    return (b * b.sum(-1)[..., None])[..., None] * np.eye(b.shape[-1])


def sum_of(grams: list[Ball], t: Array) -> Ball:
    """A Gram that contains the Minkowski sum, by positive weights t (sets, ...)."""
    terms = [Q / ti[..., None, None] for Q, ti in zip(grams, t, strict=True)]
    return Ball(t).sum(0)[..., None, None] * sum(terms[1:], start=terms[0])


def cover(T: Ball, p: float, round_: NDArray[np.bool_] | None = None) -> Ball:
    """A Gram whose ellipsoid contains sum_j T_j eps_j, for T (..., m, k); for p = 1 and where `round_`, a ball."""
    if p == math.inf:  # a box of symbols, with weights
        t = T.length().mid + 1e-154
        return Ball(t).sum(-1)[..., None, None] * ((T / t[..., None]).T @ T)
    gram = T.T @ T
    if round_ is None:
        return gram
    ball = T.length().max(-1).square()[..., None, None] * np.eye(T.shape[-1])  # the hull of the +-T_j lies in it
    return Ball.choose(round_[..., None, None], ball, gram)


def longest(T: Ball, p: float) -> Ball:
    """Bounds |sum_j T_j eps_j|_2."""
    if p == 1:
        return T.length().max(-1)
    return smaller(lambda_max(cover(T, p)).sqrt(), dual(T, p, -2).length())


def covers(Q: Array, R: Ball) -> NDArray[np.bool_]:
    """(...): whether Q - R is positive semidefinite for every matrix of the ball, proved by Cholesky's algorithm.

    It succeeds on M - shift only if M - shift + E is positive semidefinite for some |E| <= gamma(d + 1) trace(M): then
    M is, if the shift is larger. Only the symmetric matrices of the ball count.
    """
    d = Q.shape[-1]
    M = Q - (R.mid + np.swapaxes(R.mid, -1, -2)) / 2
    lost = R.rad + 4 * U * (np.abs(Q) + np.abs(R.mid))
    off = np.sqrt(np.square(lost).sum((-1, -2))) + d * 1e-161  # squares underflow
    shift = 1.001 * off + 4 * gamma(d + 4) * np.abs(np.diagonal(M, axis1=-2, axis2=-1)).sum(-1) + 1e-300
    shifted = M - shift[..., None, None] * np.eye(d)
    return np.array([_succeeds(m) for m in shifted.reshape(-1, d, d)], dtype=bool).reshape(shift.shape)


def _succeeds(M: Array) -> bool:
    try:
        return bool(np.isfinite(np.linalg.cholesky(M)).all())
    except np.linalg.LinAlgError:
        return False


def lambda_max(R: Ball) -> Ball:
    """(...): an upper bound, guessed and then proved; infinite where the guess cannot be proved."""
    d = R.shape[-1]
    finite = np.asarray(np.isfinite(R.mid + R.rad).all((-1, -2)))
    safe = np.where(finite[..., None, None], R.mid, 0.0)
    top = np.maximum(np.linalg.eigvalsh((safe + np.swapaxes(safe, -1, -2)) / 2)[..., -1], 0.0)
    slack = 4 * np.sqrt(np.square(R.rad).sum((-1, -2))) + 1e-9 * top + 100 * d * U * np.abs(safe).max((-1, -2)) + 1e-290
    guess = np.asarray(top + slack)
    return Ball(np.where(covers(guess[..., None, None] * np.eye(d), R), guess, np.inf))
