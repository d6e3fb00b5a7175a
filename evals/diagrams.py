"""What the page draws beside a comparison: whether confidences can be believed, and which arms fail together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform

from playcall.calibration import ConfidenceCalibrator, Reliability, brier, log_loss, out_of_fold, reliability
from playcall.strategies import Recording

ALIKE = 0.5
"""Arms whose failures correlate by this or more on average are one cluster."""
_FOLDS, _FEWEST = 5, 50  # folds of the calibration, scored answers that it takes


@dataclass(frozen=True)
class Calibration:
    """How far an arm's calibrated confidences can be believed, out of fold; each score with its 95% interval."""

    arm: str
    answers: int
    diagram: Reliability
    brier: tuple[float, float, float]
    log_loss: tuple[float, float, float]  # nats


def calibrations(recording: Recording, arms: Sequence[str] = ()) -> tuple[Calibration, ...]:
    """Of each arm, or of these, with at least 50 scored answers; all draws of a task are held out together."""
    found = list[Calibration]()
    for arm in arms or recording.arms:
        d = recording[arm]
        known = ~np.isnan(d.score)
        task = np.unique(recording.groups, return_inverse=True)[1] if recording.groups else np.arange(len(recording))
        group = np.broadcast_to(task[:, None], d.score.shape)[known]
        score, right = d.score[known], d.quality[known]
        if len(score) < _FEWEST or len(np.unique(group)) < _FOLDS:
            continue
        p = out_of_fold(ConfidenceCalibrator(), score, right, folds=_FOLDS, groups=group)
        found.append(Calibration(arm, len(p), reliability(p, right), brier(p, right), log_loss(p, right)))
    return tuple(found)


def clusters(alike: Mapping[str, Mapping[str, float]], arms: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The arms in groups, those that fail on the same tasks side by side, from the correlations of their failures.

    Average linkage (Sokal & Michener 1958) of 1 - correlation, cut at 0.5; groups and arms in the tree's order.
    """
    if len(arms) < 2:
        return tuple((a,) for a in arms)
    apart = 1 - np.array([[alike[a][b] for b in arms] for a in arms])
    tree = linkage(squareform(np.clip(apart, 0, 2), checks=False), "average", optimal_ordering=True)
    label = fcluster(tree, 1 - ALIKE, "distance")
    order = [int(i) for i in leaves_list(tree)]
    return tuple(tuple(arms[i] for i in order if label[i] == k) for k in dict.fromkeys(label[order]))
