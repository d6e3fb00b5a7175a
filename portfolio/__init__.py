"""Which play to run: searched on training tasks, graded on held-out ones, shipped as a file."""

from playcall.portfolio.choice import Choice, Target, choose
from playcall.portfolio.families import standard
from playcall.portfolio.nested import Chooser, HeldOut, Progress, cross_fit
from playcall.portfolio.policy import Figures, Infeasible, Policy, figures_of, fit, write_whole
from playcall.portfolio.search import Swept, best_arm, plays, priced, search, shortlist

# fmt: off
__all__ = [
    "Choice", "Chooser", "Figures", "HeldOut", "Infeasible", "Policy", "Progress", "Swept", "Target", "best_arm",
    "choose", "cross_fit", "figures_of", "fit", "plays", "priced", "search", "shortlist", "standard", "write_whole",
]
# fmt: on
