"""What a race recommends, as others take it: a LiteLLM proxy's configuration, and a policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite

import yaml

from playcall.evals.race_show import IN_DOUBT, facts
from playcall.portfolio.choice import Target
from playcall.portfolio.effects import roles_of
from playcall.portfolio.policy import Expected, Policy
from playcall.portfolio.race import Rules
from playcall.portfolio.raced import Raced, Racer
from playcall.strategies import Ask, Misuse, Strategy, arms_of


def router(raced: Raced, plays: Collection[str] = ()) -> str:
    """A configuration of LiteLLM's proxy: each role is a model's name, and asks the chosen arm's model.

    Where that fails, it asks the model of the best arm in the confidence set that has another one in the role. Raises
    Misuse where no arm is chosen, or one of the `plays` is. See https://docs.litellm.ai/docs/proxy/reliability.
    """
    if (chosen := _chosen(raced).arm) in plays:
        raise Misuse(f"{chosen!r} won: it is a play, not models by role; write it by --policy.")
    models, fallbacks = list[tuple[str, str]](), list[dict[str, list[str]]]()
    others = [roles_of(r.arm) for r in raced.arms if r.state in IN_DOUBT and r.arm not in plays]
    roles = roles_of(chosen)
    for role, model in roles.items():
        models.append((role, model))
        spare = next((told[role] for told in others if told.get(role, model) != model), None)
        if spare is not None:
            name = f"{role}-fallback"
            while name in roles:
                name += "-fallback"
            models.append((name, spare))
            fallbacks.append({role: [name]})
    told: dict[str, object] = {"model_list": [{"model_name": n, "litellm_params": {"model": m}} for n, m in models]}
    if fallbacks:
        told["router_settings"] = {"fallbacks": fallbacks}
    head = f"# What a race of {len(raced.arms)} arms on {raced.items:,} items recommends.\n"
    if bare := [model for _, model in models if "/" not in model]:
        head += f"# Put LiteLLM's provider before a name that it does not know, as in openai/{bare[0]}.\n"
    return head + yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def policy(
    raced: Raced, rules: Rules, data: Mapping[str, str], play: Strategy | None = None, calls: float = 1.0
) -> Policy:
    """The chosen arm, or the `play` of that name and so many calls, with what the race knows of it.

    Its quality is corrected for its having been chosen, and the interval holds for all arms at once. Raises Misuse
    where no arm is chosen.
    """
    best = _chosen(raced)
    strategy = Ask(best.arm) if play is None else play
    cost = _known(best.cost)
    figures = Expected(
        quality=best.corrected,
        quality_low=best.low,
        quality_high=best.high,
        cost_per_task=cost,
        cost_low=_known(best.cost_low),
        cost_high=_known(best.cost_high),
        latency_mean=_known(best.latency),
        latency_p95=None,
        calls=calls,
        difference=0.0,
        difference_low=0.0,
        difference_high=0.0,
        single_arm=best.arm,
        single_quality=best.corrected,
        single_cost=cost,
        apparent_quality=best.quality,
        tasks=best.asked,
    )
    target = Target(min_quality=rules.threshold, cost_weight=rules.cost_weight, latency_weight=rules.latency_weight)
    prices = dict.fromkeys(arms_of(strategy), cost if play is None else None)
    notes = [f"From a race for {raced.objective}, not from cross-validation; the interval holds for all arms at once."]
    if play is None and (roles := roles_of(best.arm)).keys() != {"model"}:
        told = ", ".join(f"{model} as {role}" for role, model in roles.items())
        notes.append(f"The arm is a whole agent: build it with {told}.")
    notes += [f"{name}: {words}." for name, words in facts(raced, rules) if name not in ("Take", "Roles")]
    return Policy(strategy, figures, target, prices, data, tuple(notes))


def _chosen(raced: Raced) -> Racer:
    best = next((racer for racer in raced.arms if racer.arm == raced.chosen), None)
    if best is None:
        raise Misuse("the race chose no arm, so there is nothing to write as a policy or a router.")
    return best


def _known(x: float) -> float | None:
    return x if isfinite(x) else None
