"""What a play will do on new tasks: its figures on the training tasks, shrunk towards what a model of all arms says.

Of thousands of plays the one with the best figures is mostly the luckiest. Two estimates of a play's difference to the
best single arm are at hand. The graded one is unbiased and noisy: it rests on the few tasks where the two differ. The
modelled one puts, in place of each grade, the probability that the answer is right given what all arms answered; it is
steady, and wrong where the model is. The residual between them is kept to the share that it deserves (empirical Bayes,
Efron & Morris 1973): variance between plays over that plus its own sampling variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import logit
from sklearn.linear_model import LogisticRegression

from playcall.portfolio.belief import fit_belief
from playcall.strategies import Recording, Replay, Weight, vote
from playcall.strategies.panel import Floats

_PER_CALL = 0.002  # quality that a further call must bring
_DOUBT = 0.01  # how far the model is off at the least, as a standard deviation of a play's quality
_RIDGE = 0.02  # inverse strength of the penalty on what stands beside the model of the answers
_COMMON, _TEXTS = 0.05, 4  # texts that make up this share of all answers have effects of their own, so many at most


def chances(arms: Sequence[str], recording: Recording, calibrated: Mapping[str, Weight]) -> Floats:
    """(tasks, arms) probability that each arm's first answer is right, given the first answers of all these arms.

    A conditional logit over the answers, then one logistic curve over its log-odds, the arm, who agrees with it, and
    the answer's text where that is common: an arm may give the right answer in a form that does not count, or say "no"
    to everything.
    """
    belief = fit_belief((tuple(arms),), recording, calibrated)
    seen = Replay(recording)(vote(*arms).source)
    answer, alive, each = seen.answer, seen.alive, np.eye(len(arms))
    graded = np.stack([recording[a].quality[:, 0] for a in arms], axis=1)
    y = graded[alive]
    if min(y.sum(), (1 - y).sum()) == 0:
        return graded
    same = (answer[:, :, None] == answer[:, None, :]) & alive[:, :, None] & alive[:, None, :]
    log_odds = logit(np.clip(belief.posterior(seen), 1e-3, 1 - 1e-3))[:, :, None]
    columns = [log_odds, np.broadcast_to(2 * each, same.shape), same, 2 * same.mean(axis=2, keepdims=True)]
    texts, counts = np.unique(answer[alive & (answer >= 0)], return_counts=True)
    for text in texts[np.argsort(-counts, kind="stable")[:_TEXTS]]:
        if (answer == text).sum() >= _COMMON * answer.size:
            said = 2.0 * (answer == text)[:, :, None]
            columns += [said, said * each]
    x = np.concatenate(columns, axis=2)
    told = x[alive]
    curve = LogisticRegression(C=_RIDGE, max_iter=400).fit(
        np.concatenate([told, told]), np.repeat([1, 0], len(y)), sample_weight=np.concatenate([y, 1 - y])
    )
    found = np.zeros_like(graded)
    found[alive] = curve.predict_proba(told)[:, 1]
    return found


def shrunk(modelled: Floats, residual: Floats, variance: Floats, relevance: Floats) -> Floats:
    """(plays,) expected differences to the best single arm.

    From (plays,) modelled differences, residuals of the graded ones, the sampling variances of these residuals, and
    how much each play says about how far the model is off.
    """
    free = variance > 1e-9
    between, common = 0.0, 0.0
    if (relevance * free).sum() > 0:
        r, v, w = residual[free], variance[free], relevance[free]
        common = float(np.average(r, weights=w))  # what the model gets wrong of all plays alike, so far as it is sure
        common *= max(0.0, 1 - float(np.average(v, weights=w)) / max(common**2, 1e-12))
        between = max(0.0, float(np.average((r - common) ** 2 - v, weights=w)))
    between += _DOUBT**2
    centre = np.where(free, common, 0.0)
    return np.asarray(modelled + centre + between / (between + variance) * (residual - centre))


def toll(calls: int) -> float:
    """What a play of so many calls is credited less than one call."""
    return _PER_CALL * (calls - 1)
