"""Strategies are data; engines give them meaning.

>>> from playcall.strategies import Agree, Ask, Explain, Vote
>>> play = (Ask("haiku") & Ask("mini") & Ask("opus")).until(Agree(2), gap=float("inf")).keep(Vote())
>>> Explain()(play)
'one after another, ask haiku, mini and opus, until 2 answers agree; keep the answer with most votes.'
"""

from playcall.strategies.algebra import Ask, Gather, Keep, OrElse, Strategy, Then, Within
from playcall.strategies.bounds import Bounds, Limits
from playcall.strategies.codec import decode, dump, encode, load, register
from playcall.strategies.engine import Engine, arms_of, interpret, walk
from playcall.strategies.errors import Misuse, NotRecorded, PlaycallError
from playcall.strategies.explain import Explain
from playcall.strategies.live import Attempt, Live, Provider, Result
from playcall.strategies.panel import FOREVER, Panel
from playcall.strategies.recipes import (
    best_of,
    cascade,
    confident_vote,
    fallback,
    hedge,
    hierarchy,
    race,
    self_consistency,
    vote,
)
from playcall.strategies.recording import NANO, Draws, Recording, Reply
from playcall.strategies.replay import Outcomes, Replay, outcomes
from playcall.strategies.rules import (
    Agree,
    AtLeast,
    Belief,
    Best,
    Confident,
    First,
    Never,
    Prompt,
    Rule,
    Stop,
    Template,
    Vote,
    Weight,
)
from playcall.strategies.scripted import Scripted, on_virtual_clock

# fmt: off
__all__ = [
    "FOREVER", "NANO", "Agree", "Ask", "AtLeast", "Attempt", "Belief", "Best", "Bounds", "Confident", "Draws",
    "Engine", "Explain", "First", "Gather", "Keep", "Limits", "Live", "Misuse", "Never", "NotRecorded", "OrElse",
    "Outcomes", "Panel", "PlaycallError", "Prompt", "Provider", "Recording", "Replay", "Reply", "Result", "Rule",
    "Scripted", "Stop", "Strategy", "Template", "Then", "Vote", "Weight", "Within", "arms_of", "best_of", "cascade",
    "confident_vote", "decode", "dump", "encode", "fallback", "hedge", "hierarchy", "interpret", "load",
    "on_virtual_clock", "outcomes", "race", "register", "self_consistency", "vote", "walk",
]
# fmt: on
