"""A policy file, served: what `fit` wrote runs live."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from playcall.portfolio.files import read_json
from playcall.strategies.arm import Arm
from playcall.strategies.codec import load as strategy_of
from playcall.strategies.dispatch import Options
from playcall.strategies.engine import arms_of
from playcall.strategies.errors import Misuse
from playcall.strategies.runner import Runner

if TYPE_CHECKING:
    from playcall.portfolio.policy import Policy

ARMS = "arms.yaml"
"""Read where it lies beside a policy."""


class Serving(Options, total=False):
    """How a policy is served: the options of a Runner."""

    deadline: float  # seconds a task


class Served(Runner):
    """A Runner from a file."""

    path: Path

    @cached_property
    def policy(self) -> Policy:
        """Its evidence, such as `policy.figures`; raises Misuse where the file holds a strategy alone."""
        from playcall.portfolio.policy import Policy

        return Policy.load(self.path)


def load(path: str | Path, arms: str | Path | Mapping[str, Arm] | None = None, **options: Unpack[Serving]) -> Served:
    """The policy or strategy of a file, ready for `run`, `run_sync`, `map`, `stream`, `wrap` and `call`.

    Its arms are given, or read from a file: that of `arms`, else `arms.yaml` beside the policy; without arms it can be
    wrapped around calls of yours. Answers are equal by the rule that the policy was fitted with, unless `canonical`
    says otherwise. Runs no code of the policy's file. Raises Misuse for files that are none, arms that are not there,
    and prices that nobody knows.
    """
    path = Path(path)
    document = read_json(path)
    try:
        strategy = strategy_of(document)
    except Misuse as error:
        raise Misuse(f"{path}: {error}") from error
    canonical, prices = document.get("canonical", "exact"), document.get("prices", {})
    if not isinstance(canonical, str) or not isinstance(prices, dict) or not all(map(_usd, prices.values())):
        raise Misuse(f"{path}: canonical is a name, and prices are USD a call by arm; `playcall fit` writes both.")
    if ":" in canonical and "canonical" not in options:
        raise Misuse(
            f"{path}: its answers were equal by your own function {canonical!r}, and loading a policy runs no code: "
            f"give it again, load(..., canonical={canonical!r}) or the function itself."
        )
    if arms is None and (beside := path.with_name(ARMS)).is_file():
        arms = beside
    if isinstance(arms, str | Path):
        from playcall.strategies.config import read_arms

        arms = read_arms(arms, only=arms_of(strategy))
    given: Serving = {"name": path.stem, "canonical": canonical, **options}
    served = Served(strategy, arms, **given)
    served.path, served.prices = path, prices
    return served


def _usd(price: object) -> bool:
    return price is None or (isinstance(price, int | float) and not isinstance(price, bool) and price >= 0)
