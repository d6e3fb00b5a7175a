"""A race on live agents: an agent's roles, each filled by one of some models, on a user's tasks."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import anyio

from playcall.evals.journal import Line
from playcall.evals.race_cells import GIVE, Gate, RaceJournal, Ran, Run, outcome_of, ran
from playcall.evals.race_doubts import FIRST, MEND, Doubts, Ended
from playcall.evals.race_roles import Build, arms_of, built, code_of, load_build, read_roles
from playcall.evals.scorers import Judge, Python, ScoreError, Scorer, scorer
from playcall.evals.tasks import Task
from playcall.portfolio.board import Outcome
from playcall.portfolio.race import Cell, Race, Rules
from playcall.portfolio.raced import Raced, result
from playcall.strategies import Cache, Misuse, PlaycallError, Price
from playcall.strategies.errors import only as only_error
from playcall.strategies.errors import some
from playcall.strategies.trace import Facts, Prices, facts, metric_suspect

__all__ = ["LiveRace", "arms_of", "load_build", "read_roles"]

PAUSE = 5.0  # seconds before second tries of what a server refused
APART = 1000  # draws of a second try that is to have answers of its own
LATE = 30.0  # seconds that runs may go on when the time is over; nothing new is sent
GRACE = 5.0  # seconds that a cancelled race waits for calls in threads
_KEPT = 4 * 2**30  # bytes of cached replies


@dataclass(kw_only=True)
class LiveRace:
    """A race that has been checked, and how far it is. Raises Misuse for what can be known before a call is paid.

    `build` is given the models by role and returns an agent: a function of a task, sync or async, which is run on
    several tasks at a time. Requests whose model is a role's name go to that role's model. Where calls in flight hold
    what is left of max_usd, a run waits and begins again, with the answers that it had.

    `await run()` runs it, once. Finished runs are in the journal, the replies of unfinished ones in a cache beside it:
    `run()` of an equal LiveRace goes on where another one ended, however that was, and pays nothing twice.

    A run that fails counts as 0, with "retry" if a second one fails too. One that failed by a rate limit, a server or a
    connection always has a second try, after all others and a pause. If that fails so too the race stops, and the next
    start goes on: a run that a server or a connection fails at two starts counts as 0, one over a rate limit never
    does. What tells that nothing can work stops the race.

    Hard limits hold while the process lives: one that is killed by -9 has not noted what its calls in flight cost.
    """

    build: Build
    roles: Mapping[str, Sequence[str]]
    tasks: Sequence[Task]
    scoring: str
    output: str | Path
    rules: Rules = field(default_factory=Rules)  # max_usd and max_seconds are hard; USD of earlier runs count
    max_calls: int | None = None  # model calls, of earlier runs too
    concurrency: int = 8
    failures: Literal["zero", "retry"] = "zero"
    prices: Prices | None = None
    cached: bool = True  # arms share replies to the same requests, and keep them
    fresh: bool = False  # begin anew, whatever the journal holds; cached replies stay
    tell: Callable[[], object] = lambda: None  # called whenever a figure below has changed

    made: int = 0  # runs of this start
    failed: Counter[str] = field(default_factory=Counter)  # runs that failed, by arm
    errors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # why, by arm
    stopped: str = ""  # why it ended; "done" where it came to its end

    def __post_init__(self) -> None:
        self.arms = arms_of(self.roles)
        self.names = list(self.arms)
        if self.concurrency < 1:
            raise Misuse(f"concurrency={self.concurrency}: give 1 or more.")
        if self.failures not in ("zero", "retry"):
            raise Misuse(f"failures={self.failures!r}: write zero or retry.")
        self.scorer = _scorer(self.scoring)
        if twice := [item for item, count in Counter(task.id for task in self.tasks).items() if count > 1]:
            raise Misuse(f"two tasks have the id {twice[0]!r}: give each one of its own.")
        for task in self.tasks:
            self.scorer.check(task)
        rules = self.rules
        self.gate = Gate(self.prices or {}, rules.max_usd, self.max_calls, rules.max_seconds)
        models = dict.fromkeys(model for of in self.arms.values() for model in of.values())
        if rules.max_usd is not None and (unknown := [m for m in models if self.gate.price(m) is None]):
            raise Misuse(f"max_usd is set, and nobody knows the price of {some(unknown)}: {GIVE}.")
        mine = replace(rules, max_usd=None, max_seconds=None)  # those are the gate's
        self.race = Race(self.names, len(self.tasks), mine, list(self.arms.values()))
        output = Path(self.output)
        self.journal_path = output.with_name(f"{output.name}.journal.jsonl")
        self.cache_path = output.with_name(f"{output.name}.cache.db")
        self._agents = {self.names[0]: built(self.build, self.arms[self.names[0]])}
        self._found = dict[Cell, Outcome]()  # of what the race wants now
        self._again = dict[Cell, int]()  # to be tried once more, with the draw
        self._ran = dict[Cell, Ran]()
        self._graded = dict[Cell, tuple[str, str, float]]()  # answer, reference, score
        self._doubts = Doubts(self.arms)
        self._lost = list[Run]()  # failed twice at this start, by what may pass
        self._writes = False
        self._lock = threading.Lock()  # of the journal
        self._racing = threading.Lock()  # of the race: a display looks at it from its own thread

    @property
    def spent(self) -> int:
        """Nano-dollars, of all starts."""
        return self.gate.purse.session.spent

    @property
    def calls(self) -> int:
        """Model calls that were sent, of all starts."""
        return self.gate.calls

    @property
    def facts(self) -> Facts | None:
        """What the roles did, over all runs; None where there were none."""
        return facts([self._ran[cell] for cell in sorted(self._ran)], prices=self.gate.prices) if self._ran else None

    @property
    def complete(self) -> bool:
        """Whether it came to its end."""
        return self.stopped == "done"

    @property
    def eta(self) -> float | None:
        """Seconds to go at this pace if every arm that is left is asked everything, or until its time is over."""
        if not self.made or self.stopped:
            return None
        took, board = time.monotonic() - self.gate.began, self.race.board
        left = (board.items - board.asked)[self.race.method.survivors(board)].sum() - len(self._found)
        limit = self.rules.max_seconds
        return float(min(max(0, left) * took / self.made, *([] if limit is None else [max(0.0, limit - took)]), 1e9))

    def raced(self) -> Raced:
        """How it stands."""
        with self._racing:
            race = self.race
            if found := dict(self._found):
                race = deepcopy(race)
                race.take(found)
            return result(race)

    def remarks(self) -> Iterator[str]:
        """What its owner should know, a sentence each."""
        asked = Counter(run.arm for run in self._ran.values())
        for arm in filter(self.failed.__getitem__, self.names):
            (why, _), *more = self.errors[arm].most_common()
            told = f"{self.failed[arm]:,} of {asked[arm]:,} runs of {arm} failed and count as 0"
            yield f"{told}, {'most ' if more else ''}by {why}"
        if self._ran and (found := self.facts):
            yield from found.warnings
        yield from self._doubts.remarks()
        if self._graded and (suspect := metric_suspect(*zip(*self._graded.values()))):
            yield suspect
        if self.stopped not in ("", "done"):
            yield f"Stopped: {self.stopped}."

    async def run(self) -> None:
        """Race. Raises PlaycallError where the journal cannot be used, ScoreError for a bad scorer."""
        with RaceJournal(self.journal_path, fresh=self.fresh) as self._journal:
            self._begin()
            try:
                limit = self.rules.max_seconds
                with anyio.move_on_after(None if limit is None else limit + LATE) as timely:
                    while cells := self._wanted():
                        await self._batch(cells)
                if timely.cancelled_caught:
                    self.gate.close(
                        f"max_seconds={limit} is reached, and runs went on for {LATE:g} s more: they are left"
                    )
            except anyio.get_cancelled_exc_class():
                self.gate.close("interrupted")
                with anyio.move_on_after(GRACE, shield=True):
                    while self.gate.threads:
                        await anyio.sleep(0.01)
                raise
            finally:
                self._end()

    def _begin(self) -> None:
        self._writes = True
        self._cache = Cache(self.cache_path, max_bytes=_KEPT) if self.cached else None
        settings = {
            "scoring": self.scoring,
            "build": getattr(self.build, "__qualname__", type(self.build).__name__),
            "code of the agent": code_of(self.build),
            "code of the scorer": code_of(self.scorer.function) if isinstance(self.scorer, Python) else "",
        }
        arms = {arm: {"models": of, **settings, "prices": self._priced(of)} for arm, of in self.arms.items()}
        if not self._journal.calls:  # nothing was run otherwise
            self._journal.heads = {kind: {} for kind in self._journal.heads}
        try:
            self._journal.begin({task.id: _digest(task) for task in self.tasks}, arms, {})
        except PlaycallError as error:
            raise PlaycallError(f"{error} Replies stay in the cache and are not paid again.") from None
        self.gate.purse.session.spent, self.gate.calls = self._journal.spent, self._journal.paid
        self.gate.began = time.monotonic()
        self.tell()

    def _priced(self, models: Mapping[str, str]) -> dict[str, Any]:
        """The user's prices of some models, as a journal keeps them."""
        rates, told = ("input", "output", "cached", "reasoning", "written", "call"), dict[str, Any]()
        for model in models.values():
            if price := self.gate.prices.get(model):
                told[model] = {r: getattr(price, r) for r in rates} if isinstance(price, Price) else price
        return told

    def _wanted(self) -> Sequence[Cell]:
        with self._racing:
            return self.race.wanted()

    def _settle(self, cells: Sequence[Cell]) -> None:
        """Tell the race what was found, in this order."""
        with self._racing:
            self.race.take({cell: self._found[cell] for cell in cells if cell in self._found})
            self._found = {}

    def _end(self) -> None:
        self._settle(sorted(self._found))
        with self._lock:
            self._writes, journal = False, self._journal
            if lines := len(journal.unsaved):
                why, saved = journal.full, journal.save()
                how = "could not be written for a while" if saved else "cannot be written"
                left = "all is saved now" if saved else f"{len(journal.unsaved)} of {lines} lines are lost"
                self.race.stopped = f"{self.journal_path} {how} ({why}): {left}; make room and start again"
        self.race.stop(self.gate.stopped)
        self.stopped = self.race.stopped or "an error"
        self.tell()

    async def _batch(self, cells: Sequence[Cell]) -> None:
        """Run what is not in the journal, and tell the race of all of it at once, whatever came first."""
        keys = {(k, item): (self.tasks[item].id, self.names[k], 0) for k, item in cells}
        for cell in cells:
            if keys[cell] in self._journal.calls:
                with self._lock:
                    line = self._journal.read(keys[cell])
                self._doubts.known(line)
                self._take(cell, line)
        await self._each([cell for cell in cells if cell not in self._found], self._first)
        if 0 in self._again.values() and not self.gate.stopped:
            left = (self.rules.max_seconds or inf) - (time.monotonic() - self.gate.began)
            await anyio.sleep(max(0.0, min(PAUSE, left)))
        await self._each(list(self._again), self._second)
        if why := self._doubts.why(over=True) or self._refused():
            self.gate.stop(why)
        if not self.gate.stopped:
            self._enter(self._doubts.release())
        if len(self._found) < len(cells):
            self.race.stop(self.gate.stopped)
        self._settle(cells)

    def _refused(self) -> str:
        """Why the race must stop by what failed twice; empty if it need not."""
        if not self._lost:
            return ""
        told = f"{len(self._lost):,} runs failed twice, the last one of {self._lost[-1].arm} by {self._lost[-1].error}"
        none = "" if self._doubts.answered else ", and no model call was answered"
        return f"{told}{none}; start again when the server answers: what fails by it once more counts as 0"

    async def _each(self, cells: Sequence[Cell], work: Callable[[Cell], Awaitable[None]]) -> None:
        """Work on all, some at a time; at an error what is in flight is still waited for."""
        todo, broken = iter(cells), list[Exception]()

        async def one() -> None:
            for cell in todo:
                if broken or self.gate.late or self.gate.stopped:
                    return
                try:
                    await work(cell)
                except Exception as error:  # the others' answers are paid for: wait for them
                    broken.append(error)

        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self.concurrency, len(cells))):
                    group.start_soon(one)
        except BaseExceptionGroup as error:
            raise only_error(error) from None
        if broken:
            raise broken[0]

    async def _first(self, cell: Cell) -> None:
        run = await self._run(cell)
        if run.error and not run.fatal and not run.refused and (run.passing or self.failures == "retry"):
            self._again[cell] = 0 if run.passing else APART
        else:
            await self._done(cell, run)

    async def _second(self, cell: Cell) -> None:
        run = await self._run(cell, self._again.pop(cell))
        key = run.item, run.arm, 0
        if run.fatal or run.refused or not run.passing or (key in self._journal.lost and not run.limited):
            await self._done(cell, run)
        elif run.limited:
            say = "no run counts as failed by it; start again to go on, later or with less concurrency"
            self.gate.stop(f"arm {run.arm!r} failed twice by {run.error}: {say}")
        else:
            self._lost.append(run)
            self._write({"lost": key})
            if not self._doubts.answered and len(self._lost) >= FIRST:
                self.gate.stop(self._refused())

    async def _run(self, cell: Cell, draw: int = 0) -> Run:
        arm, task = self.names[cell[0]], self.tasks[cell[1]]
        if arm not in self._agents:
            self._agents[arm] = built(self.build, self.arms[arm])
        run = Run(arm, task.id, self.arms[arm], self.gate, self._cache or Cache(), self._paid, draw)
        await run(self._agents[arm], task.task)
        return run

    async def _done(self, cell: Cell, run: Run) -> None:
        """Enter a run that has ended, unless it is to be made again."""
        if run.refused:
            return
        if run.fatal:
            self.gate.stop(f"arm {run.arm!r}: {run.fatal}; {MEND}")
            return
        free = [call.model for call in run.calls if call.source == "unknown"]
        if free and (self.rules.cost_weight or self.rules.seeks_cheapest):
            self.gate.stop(
                f"the race is about cost, and nobody knows the price of {free[0]!r}: {GIVE}, and start again"
            )
            return
        score: float | None = 0.0
        if not run.error:
            score = await self.scorer(self.tasks[cell[1]], run.answer)
        if score is None:
            raise ScoreError(f"scorer {self.scoring} gave no score to item {run.item!r}; let it give 0 to 1.")
        self._enter(self._doubts.add(Ended(cell, run.line(score), run)))
        if why := self._doubts.why():
            self.gate.stop(why)
        self.tell()

    def _enter(self, ended: Sequence[Ended]) -> None:
        """They are outcomes."""
        for cell, line, _ in ended:
            self._write(line)
            self.made += 1
            self._take(cell, line)

    def _take(self, cell: Cell, line: Line) -> None:
        self._found[cell] = outcome_of(line)
        arm = self.names[cell[0]]
        self._ran[cell] = ran(line, self.arms[arm])
        if why := self._doubts.look(self._ran[cell], line):
            self.gate.stop(why)
            self.race.stop(why)
        if isinstance(line["answer"], str) and isinstance(reference := self.tasks[cell[1]].reference, str):
            self._graded[cell] = line["answer"], reference, line["score"]
        if line["failed"]:
            self.failed[arm] += 1
            self.errors[arm][line["error"]] += 1

    def _paid(self, arm: str, item: str, nano: int) -> None:
        """A request was answered; threads tell it too, and some when the race is over."""
        self._write({"paid": [item, arm], "nano": nano})

    def _write(self, line: Line) -> None:
        with self._lock:
            if self._writes and not self._journal.add(line):
                self.gate.close(f"{self.journal_path} cannot be written: {self._journal.full}")


def _scorer(name: str) -> Scorer:
    if name.startswith("judge:"):
        say = "write python:module:function, which may ask a model itself"
        raise Misuse(f"scorer {name!r} needs arms, which a race has none of: {say}.")
    found = scorer(name)
    assert not isinstance(found, Judge)
    return found


def _digest(task: Task) -> str:
    """The same for what is asked and scored in the same way."""
    told = json.dumps([task.digest, task.reference], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
