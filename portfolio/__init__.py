"""Which play to run: searched on training tasks, graded on held-out ones, shipped as a file."""

from playcall.portfolio.choice import Choice, Target, choose
from playcall.portfolio.families import standard
from playcall.portfolio.nested import Chooser, Figures, Folding, HeldOut, Progress, cross_fit
from playcall.portfolio.policy import Expected, Infeasible, Policy, fit, write_whole
from playcall.portfolio.search import Swept, best_arm, plays, priced, search, shortlist

# fmt: off
__all__ = [
    "Choice", "Chooser", "Expected", "Figures", "Folding", "HeldOut", "Infeasible", "Policy", "Progress", "Swept",
    "Target", "best_arm", "choose", "cross_fit", "fit", "plays", "priced", "search", "shortlist", "standard",
    "write_whole",
]
# fmt: on
