"""One (ε, δ) spent on several noisy releases of all clients: who draws the noise, and what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import BudgetError
from fedsynth.privacy.composition import Composition, check_shares, share_mu
from fedsynth.privacy.ledger import LedgerPart
from fedsynth.privacy.mechanism import add_gaussian_noise, client_generators
from fedsynth.privacy.parameters import (
    PrivacyParameterError,
    check_count,
    check_delta,
    check_epsilon,
    check_positive,
)
from fedsynth.records import InvalidTensorError, check_tensor


class Noisy(NamedTuple):
    """What the clients sent.

    Attributes:
        values: One entry per client, with that client's own noise.
        std: Standard deviation of the noise of every entry of a client (off the diagonal of a symmetric matrix
            it is std/√2). A sum over K clients has √K times that.
    """

    values: Float[Tensor, "client ..."]
    std: float


class GaussianBudget:
    """Adds every client's own Gaussian noise to what it sends, and keeps the account.

    A record lies with one client, and every release goes through here, so the whole costs one record at most
    (ε, δ) however many clients there are (parallel over clients, composed over releases). Releases may depend
    on what was released before.

    Args:
        epsilon: ε in (0, ∞]. With ∞ values pass unchanged; random numbers are drawn all the same.
        delta: δ in (0, 1).
        shares: Part of the budget by name; they must add up to 1.
        num_releases: Into how many equal releases a part is divided; one where it is not named.
        composition: How prices add up.
        num_clients: K.
        seed_generator: From a client's index to that client's own CPU generator; it must depend on the release.

    Raises:
        PrivacyParameterError: For a value out of range or shares that are no split.
        PrivacyError: If two clients' generators are in the same state.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        shares: Mapping[str, float],
        num_releases: Mapping[str, int] | None = None,
        composition: Composition = Composition.GDP,
        num_clients: int,
        seed_generator: Callable[[int], torch.Generator],
    ) -> None:
        self.epsilon, self.delta = check_epsilon(epsilon), check_delta(delta)
        self.composition = composition
        self.num_clients = check_count(num_clients, "num_clients")
        check_shares(shares, shares)
        asked = dict(num_releases or {})
        if set(asked) - set(shares):
            raise PrivacyParameterError(
                f"num_releases names {sorted(set(asked) - set(shares))}, which have no share. Known: {sorted(shares)}."
            )
        self._num_releases = {
            name: check_count(asked.get(name, 1), f"num_releases.{name}") for name in shares
        }
        self._shares = dict(shares)
        self._left = dict(self._num_releases)
        self._generators = client_generators(self.num_clients, seed_generator)
        self._parts: list[LedgerPart] = []

    @property
    def is_private(self) -> bool:
        """Whether there is noise, i.e. ε is finite."""
        return not math.isinf(self.epsilon)

    @property
    def parts(self) -> tuple[LedgerPart, ...]:
        """What has been released so far, in order; without noise nothing was paid for."""
        return tuple(self._parts)

    @property
    def spent_share(self) -> float:
        """The part of the budget that is used up, in [0, 1]."""
        return math.fsum(
            self._shares[name] * (1 - self._left[name] / self._num_releases[name]) for name in self._shares
        )

    def noise_std(self, part: str, sensitivity: float) -> float:
        """σ of one release of a part, from what is public only: it can be asked before any record is read.

        Raises:
            PrivacyParameterError: For an unknown part or a sensitivity that is not positive and finite.
        """
        if part not in self._shares:
            raise PrivacyParameterError(
                f"There is no share for {part!r}. Known parts: {sorted(self._shares)}."
            )
        share = self._shares[part] / self._num_releases[part]
        mu = share_mu(share, epsilon=self.epsilon, delta=self.delta, composition=self.composition)
        return check_positive(sensitivity, "sensitivity") / mu

    def release(self, part: str, values: Float[Tensor, "client ..."], sensitivity: float) -> Noisy:
        """Every client's values with noise, at the price of one release of the part.

        Args:
            part: Whose share pays.
            values: Exact values of every client, in float64.
            sensitivity: Largest L2 distance between a client's values on neighboring data.

        Raises:
            BudgetError: If the part has been released as often as was planned.
            InvalidTensorError: If there is not one entry per client, or a value is not finite.
        """
        values = check_tensor(values, "values").double()
        if values.shape[:1] != (self.num_clients,):
            raise InvalidTensorError(
                f"values must have one entry per client ({self.num_clients}), got shape {tuple(values.shape)}."
            )
        std = self.noise_std(part, sensitivity)
        if self._left[part] == 0:
            raise BudgetError(
                f"The share of {part!r} is spent: it was planned for {self._num_releases[part]} releases. Plan more "
                "(num_releases), which adds noise to each of them."
            )
        self._left[part] -= 1
        if self.is_private:
            self._record(part, sensitivity, std)
        noisy = [
            add_gaussian_noise(value, std, generator)
            for value, generator in zip(values, self._generators, strict=True)
        ]
        return Noisy(torch.stack(noisy), std)

    def release_symmetric(
        self, part: str, matrices: Float[Tensor, "client ... dim dim"], sensitivity: float
    ) -> Noisy:
        """The same for symmetric matrices whose sensitivity is in the Frobenius norm.

        The noise is that of :meth:`release` in the coordinates (m_ii, √2 m_ij with i < j), whose L2 norm is the
        Frobenius norm: symmetric, of variance σ² on the diagonal and σ²/2 off it.

        Raises:
            BudgetError, InvalidTensorError: As :meth:`release`.
        """
        matrices = check_tensor(matrices, "matrices").double()
        dim = matrices.shape[-1]
        row, column = torch.triu_indices(dim, dim)
        weight = torch.where(row == column, 1.0, math.sqrt(2)).double()
        noisy = self.release(part, matrices[..., row, column] * weight, sensitivity)
        result = torch.empty_like(matrices)
        result[..., row, column] = result[..., column, row] = noisy.values / weight
        return Noisy(result, noisy.std)

    def _record(self, part: str, sensitivity: float, std: float) -> None:
        last = self._parts[-1] if self._parts else None
        share = self._shares[part] / self._num_releases[part]
        if last and (last.name, last.sensitivity, last.noise_std) == (part, sensitivity, std):
            more = last.num_releases + 1
            self._parts[-1] = LedgerPart(part, last.share + share, sensitivity, std, more)
        else:
            self._parts.append(LedgerPart(part, share, sensitivity, std, 1))
