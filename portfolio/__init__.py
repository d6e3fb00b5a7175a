"""Which play to run: searched on training tasks, graded on held-out ones, shipped as a file, served from it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported on first use: scikit-learn takes its time, and serving needs none of it
    from playcall.portfolio.choice import Choice, Target, choose
    from playcall.portfolio.families import standard
    from playcall.portfolio.files import write_whole
    from playcall.portfolio.nested import Chooser, Figures, Folding, HeldOut, Progress, cross_fit
    from playcall.portfolio.policy import Expected, Infeasible, Policy, fit, fit_points
    from playcall.portfolio.pool import search
    from playcall.portfolio.serve import Served, load
    from playcall.portfolio.sweep import Fixed, Play, Swept, best_arm, plays, priced, shortlist

# fmt: off
__all__ = [
    "Choice", "Chooser", "Expected", "Figures", "Fixed", "Folding", "HeldOut", "Infeasible", "Play", "Policy",
    "Progress", "Served", "Swept", "Target", "best_arm", "choose", "cross_fit", "fit", "fit_points", "load", "plays",
    "priced", "search", "shortlist", "standard", "write_whole",
]
# fmt: on
_LIGHT = {"load": "serve", "Served": "serve", "write_whole": "files"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    places = [_LIGHT[name]] if name in _LIGHT else ["choice", "families", "nested", "policy", "pool", "sweep"]
    for module in places if name in __all__ else ():
        if hasattr(found := import_module(f"playcall.portfolio.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module 'playcall.portfolio' has no attribute {name!r}")
