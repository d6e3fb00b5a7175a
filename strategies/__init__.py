"""Strategies are data; engines give them meaning.

>>> from playcall.strategies import Agree, Ask, Explain, Vote
>>> play = (Ask("haiku") & Ask("mini") & Ask("opus")).until(Agree(2), gap=float("inf")).keep(Vote())
>>> Explain()(play)
'one after another, ask haiku, mini and opus, until 2 answers agree; keep the answer with most votes.'
"""

from playcall.strategies.agent import Agent, Models
from playcall.strategies.algebra import Ask, Gather, Keep, OrElse, Strategy, Then, Within
from playcall.strategies.arm import Arm
from playcall.strategies.bounds import Bounds, Limits
from playcall.strategies.budget import Budget
from playcall.strategies.cache import Cache
from playcall.strategies.call import Answer, Call, CallFailed, Endpoint, Failure, Usage
from playcall.strategies.calling import drain
from playcall.strategies.codec import decode, dump, encode, load, register
from playcall.strategies.config import MissingKey, read_arms
from playcall.strategies.dispatch import Dispatch
from playcall.strategies.engine import Engine, arms_of, interpret, walk
from playcall.strategies.errors import Misuse, NotRecorded, PlaycallError
from playcall.strategies.explain import Explain
from playcall.strategies.ledger import Ledger
from playcall.strategies.live import Attempt, Live, NoAnswer, Provider, Result
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.panel import FOREVER, Panel
from playcall.strategies.prices import Price
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
    Consistent,
    First,
    Never,
    Prompt,
    Rule,
    Stop,
    Template,
    Vote,
    Weight,
)
from playcall.strategies.runner import Runner, StreamCut
from playcall.strategies.scripted import Played, Scripted, on_virtual_clock
from playcall.strategies.spending import SummaryRow, summary
from playcall.strategies.trace import Facts, RoleFacts, facts, metric_suspect
from playcall.strategies.track import Trace, UntrackedCalls, role, track
from playcall.strategies.vendors import LiteLLM
from playcall.strategies.worst import Worst

# fmt: off
__all__ = [
    "FOREVER", "NANO", "Agent", "Agree", "Answer", "Arm", "Ask", "AtLeast", "Attempt", "Belief", "Best", "Bounds",
    "Budget", "Cache", "Call", "CallFailed", "Confident", "Consistent", "Dispatch", "Draws", "Endpoint", "Engine",
    "Explain", "Facts", "Failure", "First", "Gather", "Keep", "Ledger", "Limits", "LiteLLM", "Live", "MissingKey",
    "Misuse", "Models", "Never", "NoAnswer", "NotRecorded", "OpenAICompatible", "OrElse", "Outcomes", "Panel",
    "PlaycallError", "Played", "Price", "Prompt", "Provider", "Recording", "Replay", "Reply", "Result", "RoleFacts",
    "Rule", "Runner", "Scripted", "Stop", "Strategy", "StreamCut", "SummaryRow", "Template", "Then", "Trace",
    "UntrackedCalls", "Usage", "Vote", "Weight", "Within", "Worst", "arms_of", "best_of", "cascade", "confident_vote",
    "decode", "drain", "dump", "encode", "facts", "fallback", "hedge", "hierarchy", "interpret", "load",
    "metric_suspect", "on_virtual_clock", "outcomes", "race", "read_arms", "register", "role", "self_consistency",
    "summary", "track", "vote", "walk",
]
# fmt: on
