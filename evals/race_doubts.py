"""What tells that a race would measure nothing: its runs fail alike, or ask what their arm has nothing to do with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from playcall.evals.journal import Line
from playcall.evals.race_cells import Ran, Run
from playcall.portfolio.race import Cell
from playcall.strategies.errors import some

FIRST = 5  # runs without an answered call that tell that nothing can work
MANY = 10  # runs, and two of each arm, that all fail; or of an arm in a row that ask other arms' models
REFUSED = 3  # runs of an arm that a model refuses as bad requests
MEND = "mend it, or leave the model out, and start again: what is paid is not paid twice"


class Ended(NamedTuple):
    """A run that has ended."""

    cell: Cell
    line: Line
    run: Run


class Doubts:
    """Runs are held, and are no outcomes yet, while nothing shows that anything works: no call was answered, no run
    came to an answer, or a model has refused all that its arm asked. `why` says when there are enough of them."""

    def __init__(self, arms: Mapping[str, Mapping[str, str]]) -> None:
        self.arms = arms
        self.answered = False  # a call, of any run
        self.worked = set[str]()  # arms with a run that nothing spoiled
        self.unseen = Counter[str]()  # runs by what went out beside their calls
        self.outside: dict[str, Counter[str]] = defaultdict(Counter)  # runs by arm and model that it should not ask
        self._held = list[Ended]()
        self._strays = Counter[str]()  # runs in a row
        self._raced = {_tail(model) for of in arms.values() for model in of.values()}

    def known(self, line: Line) -> None:
        """A run of the journal."""
        self.answered = True
        if not line["failed"]:
            self.worked.add(line["call"][1])

    def add(self, ended: Ended) -> list[Ended]:
        """A run has ended; those that are outcomes now."""
        run = ended.run
        self.answered = self.answered or any(call.usage or not call.error for call in run.calls)
        if not run.error and not run.refusal:
            self.worked.add(run.arm)
        self._held.append(ended)
        if not self.answered or not self.worked:
            return []
        done = list[Ended]()
        for one in self.release():
            (self._held if one.run.refusal and one.run.arm not in self.worked else done).append(one)
        return done

    def release(self) -> list[Ended]:
        """All that are held are outcomes."""
        held, self._held = self._held, []
        return held

    def why(self, *, over: bool = False) -> str:
        """Why the race must stop, by what is held; empty if it need not. `over` says that no more comes for now."""
        runs = [held.run for held in self._held]
        errors = Counter(run.error for run in runs if run.error)
        refused = Counter(run.arm for run in runs if run.refusal)
        if runs and not self.answered and (over or len(runs) >= FIRST):
            return f"{_unanswered(runs, errors)}, and start again"
        if arm := next((arm for arm, count in refused.items() if count >= REFUSED), ""):
            why = next(run.refusal for run in runs if run.refusal and run.arm == arm)
            return f"arm {arm!r}: {why}, in each of its first {refused[arm]} runs; {MEND}"
        enough = len(runs) >= max(MANY, 2 * len(self.arms)) or (over and {r.arm for r in runs} == set(self.arms))
        if runs and not self.worked and enough:
            most = errors.most_common(1)[0][0] if errors else next(run.refusal for run in runs)
            return f"all of the first {len(runs):,} runs failed, most by {most}; {MEND}"
        return ""

    def look(self, ran: Ran, line: Line) -> str:
        """At an outcome: why the race must stop by what it asked; empty if it need not."""
        self.unseen.update(line.get("unseen", ()))
        own, used = {_tail(m) for m in self.arms[ran.arm].values()}, {_tail(call.model) for call in ran.calls}
        if used - own and ran.models.keys() - {call.role for call in ran.calls}:
            self.outside[ran.arm].update(used - own)
        stray = bool(used & self._raced) and not used & own
        self._strays[ran.arm] = self._strays[ran.arm] + 1 if stray else 0
        if self._strays[ran.arm] < MANY or len(self.arms) < 2:
            return ""
        say = "Let each agent ask the models that it was built with, not those of a global name; a model that all arms "
        say += "ask is a role of its own, with this one model"
        return f"arm {ran.arm!r}: {MANY} runs in a row asked {some(sorted(used))} and none of its own models. {say}"

    def remarks(self) -> Iterator[str]:
        """What its owner should know, a sentence each."""
        for arm, models in self.outside.items():
            told = f"{max(models.values()):,} runs of {arm} asked {some(sorted(models))}, which it has not"
            yield f"{told}, and left a role of it out: does its agent ask the models that it was built with?"
        if self.unseen:
            told = f"in {max(self.unseen.values()):,} runs or more this went out beside the calls: {some(self.unseen)}"
            yield f"{told}; if that asks models, nobody counts what they cost, and no budget holds it"


def _unanswered(runs: list[Run], errors: Counter[str]) -> str:
    many = f"no model call was answered in the first {len(runs):,} runs"
    if any(run.calls for run in runs):
        return f"{many}: {errors.most_common(1)[0][0] if errors else 'each failed'}; mend it"
    if unseen := list(dict.fromkeys(what for run in runs for what in run.unseen)):
        say = "Let the agent call models in this process, by a client that sends with httpx, aiohttp or requests, as "
        return f"{many}, but this went out: {some(unseen)}. {say}the vendors' do"
    if errors:
        return f"{many}, since the agent failed before: {errors.most_common(1)[0][0]}; mend it"
    return f"{many}: the agent answered without any; let it ask its models"


def _tail(model: str) -> str:
    """Its name without a provider, as clients may send it."""
    return model.rsplit("/", 1)[-1]
