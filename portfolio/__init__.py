"""Which play to run: searched on training tasks, graded on held-out ones, shipped as a file, served from it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported on first use: scikit-learn takes its time, and serving needs none of it
    from playcall.portfolio.arms import Finding, diagnose
    from playcall.portfolio.board import Outcome
    from playcall.portfolio.cascade import CascadeLearner
    from playcall.portfolio.choice import Choice, Target, choose
    from playcall.portfolio.coverage import Checked, CoveragePortfolio, checked_plays
    from playcall.portfolio.curve import CurvePoint, learning_curve
    from playcall.portfolio.draws import drawn
    from playcall.portfolio.families import standard
    from playcall.portfolio.files import write_whole
    from playcall.portfolio.guarantee import Guarantee, certify
    from playcall.portfolio.joint import JointFailure
    from playcall.portfolio.learner import PortfolioLearner
    from playcall.portfolio.nested import Chooser, Figures, Folding, HeldOut, Progress, cross_fit
    from playcall.portfolio.policy import Expected, Infeasible, Policy, fit, fit_points
    from playcall.portfolio.pool import search
    from playcall.portfolio.race import Race, Rules
    from playcall.portfolio.raced import Raced, Racer, result
    from playcall.portfolio.serve import Served, load
    from playcall.portfolio.simulated import Grid, Simulated, replay, simulate
    from playcall.portfolio.studies import Study, study
    from playcall.portfolio.sweep import Fixed, Play, Swept, best_arm, plays, priced, shortlist
    from playcall.portfolio.voting import VotePortfolio

# fmt: off
__all__ = [
    "CascadeLearner", "Checked", "Choice", "Chooser", "CoveragePortfolio", "CurvePoint", "Expected", "Figures",
    "Finding", "Fixed", "Folding", "Grid", "Guarantee", "HeldOut", "Infeasible", "JointFailure", "Outcome", "Play",
    "Policy", "PortfolioLearner", "Progress", "Race", "Raced", "Racer", "Rules", "Served", "Simulated", "Study",
    "Swept", "Target", "VotePortfolio", "best_arm", "certify", "checked_plays", "choose", "cross_fit", "diagnose",
    "drawn", "fit", "fit_points", "learning_curve", "load", "plays", "priced", "replay", "result", "search",
    "shortlist", "simulate", "standard", "study", "write_whole",
]
_PLACES = {
    "cascade": ("CascadeLearner",), "serve": ("load", "Served"), "files": ("write_whole",),
    "arms": ("Finding", "diagnose"),
    "coverage": ("Checked", "CoveragePortfolio", "checked_plays"), "curve": ("CurvePoint", "learning_curve"),
    "draws": ("drawn",), "families": ("standard",), "guarantee": ("Guarantee", "certify"), "joint": ("JointFailure",),
    "learner": ("PortfolioLearner",), "nested": ("Chooser", "Figures", "Folding", "HeldOut", "Progress", "cross_fit"),
    "race": ("Race", "Rules"), "raced": ("Raced", "Racer", "result"),
    "simulated": ("Grid", "Simulated", "replay", "simulate"), "board": ("Outcome",),
    "policy": ("Expected", "Infeasible", "Policy", "fit", "fit_points"), "pool": ("search",),
    "choice": ("Choice", "Target", "choose"), "studies": ("Study", "study"), "voting": ("VotePortfolio",),
    "sweep": ("Fixed", "Play", "Swept", "best_arm", "plays", "priced", "shortlist"),
}
# fmt: on
_PLACE = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _PLACE:
        raise AttributeError(f"module 'playcall.portfolio' has no attribute {name!r}")
    return getattr(import_module(f"playcall.portfolio.{_PLACE[name]}"), name)
