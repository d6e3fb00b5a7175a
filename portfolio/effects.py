"""Which role's model matters: main effects of the roles on quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from playcall.portfolio.board import Board
from playcall.strategies.panel import Floats

_REDRAWN = 200  # bootstrap samples of the items


@dataclass(frozen=True)
class RoleEffect:
    """How much the choice of one role's model moves an arm's quality.

    `spread` is the standard deviation of its models' main effects without what chance adds to it, with a 95% interval
    from items drawn anew; `share` its part in the variance between arms, what roles do not explain included; `models`
    each model's main effect, 0 on average, as measured.
    """

    role: str
    spread: float
    low: float
    high: float
    share: float
    models: Mapping[str, float]


def roles_of(arm: str) -> dict[str, str]:
    """The models by role in an arm named `planner=a + solver=b`; one role, `model`, in any other."""
    parts = [part.split("=", 1) for part in arm.split(" + ")]
    if all(len(part) == 2 and part[0].strip() for part in parts):
        return {role.strip(): model.strip() for role, model in parts}
    return {"model": arm}


def role_effects(board: Board, roles: Sequence[Mapping[str, str]]) -> tuple[RoleEffect, ...]:
    """Main effects by least squares on the arms' leads over the arm asked most, each on the items that both have.

    Every role is fitted with the others held fixed, so that an uneven choice of combinations does not mix them up.
    Empty where there are too few arms or items to tell them apart.
    """
    every = dict.fromkeys(role for told in roles for role in told)
    names = [name for name in every if len(_levels(roles, name)) > 1]
    columns = [(name, level) for name in names for level in _levels(roles, name)]
    asked = np.array([k for k, told in enumerate(roles) if told and board.asked[k] > 1], np.int64)
    if not names or len(asked) < len(columns) - len(names) + 1:
        return ()
    coded = np.array([[float(str(roles[k].get(name)) == level) for name, level in columns] for k in asked.tolist()])
    n = board.asked[asked]
    weight = np.sqrt(n)[:, None]
    solve = np.linalg.pinv(np.c_[np.ones(len(asked)), coded] * weight)[1:]
    rows = int(n.max())
    values, reference = board.values[:rows, asked], int(np.argmax(board.asked))

    def leads(items: Floats) -> Floats:
        """The arms' leads, each item counted so many times."""
        counted = np.maximum(np.cumsum(items)[n - 1], 1e-9)
        return (items @ values - np.cumsum(items * board.values[:rows, reference])[n - 1]) / counted

    def effects(lead: Floats) -> dict[str, Floats]:
        found = solve @ (lead * weight[:, 0])
        told = {name: found[[i for i, (role, _) in enumerate(columns) if role == name]] for name in names}
        return {name: value - value.mean() for name, value in told.items()}

    def between(values: Floats) -> float:
        return float(np.average((values - np.average(values, weights=n)) ** 2, weights=n))

    lead = leads(np.ones(rows))
    main, rng = effects(lead), np.random.default_rng(0)
    drawn = [leads(rng.multinomial(rows, np.full(rows, 1 / rows)).astype(float)) for _ in range(_REDRAWN)]
    redrawn = [effects(each) for each in drawn]
    fitted = {name: coded[:, [role == name for role, _ in columns]] @ main[name] for name in names}
    rest = lead - sum(fitted.values())
    noise = np.average(np.var(drawn, axis=0), weights=n) * max(0.0, 1 - len(columns) / len(asked))
    parts = dict.fromkeys(names, 0.0) | {"": max(0.0, between(rest) - float(noise))}
    found = []
    for name in names:
        again = np.array([sample[name] for sample in redrawn])
        chance = float(again.var(0).mean())  # what it adds to a squared deviation; resampling adds it once more
        spread = np.sqrt(max(0.0, float(main[name].var()) - chance))
        low, high = np.quantile(np.sqrt(np.maximum(0.0, again.var(1) - 2 * chance)), [0.025, 0.975])
        parts[name] = max(0.0, between(fitted[name]) - chance)
        models = dict(zip(_levels(roles, name), main[name].tolist()))
        found.append(RoleEffect(name, float(spread), float(low), float(high), 0.0, models))
    whole = sum(parts.values()) or 1.0
    return tuple(replace(effect, share=parts[effect.role] / whole) for effect in found)


def _levels(roles: Sequence[Mapping[str, str]], name: str) -> list[str]:
    return sorted({str(told.get(name)) for told in roles if told})
