"""Recording: every arm on every task, n times, each paid once, into the table that `fit` and `compare` read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import anyio
import numpy as np
from anyio.lowlevel import checkpoint

from playcall.evals.journal import Journal, Key, Line, line_of, plain, price_of, price_said, settings_of
from playcall.evals.scorers import PROMPT, Judge, Scorer, scorer, verdict
from playcall.evals.tasks import Task
from playcall.evals.written import OURS, as_type, check_name, type_of, write_table
from playcall.strategies import NANO, Attempt, Misuse, PlaycallError
from playcall.strategies.agent import Agent
from playcall.strategies.arm import Arm
from playcall.strategies.budget import Budget
from playcall.strategies.call import CallFailed, Failure
from playcall.strategies.canonical import canonicaliser
from playcall.strategies.dispatch import Dispatch
from playcall.strategies.dispatch import Options as Serving
from playcall.strategies.errors import only as only_error
from playcall.strategies.ledger import Ledger
from playcall.strategies.panel import PROMPTED
from playcall.strategies.requests import request_of
from playcall.strategies.scripted import Played

Unpriced = Literal["error", "free", "refuse"]
PASSES = 2  # over the calls whose server or connection fails: by the second a bad stretch may have passed
_STOPPING = {Failure.AUTH, Failure.NOT_FOUND, Failure.QUOTA, Failure.BUDGET}
_AGAIN = {Failure.RATE, Failure.SERVER, Failure.CONNECTION, Failure.CUT, Failure.BENCHED, Failure.DEADLINE}
_UNKEPT = {*_STOPPING, *_AGAIN, Failure.REQUEST, Failure.UNPRICED}  # made anew by the next start


class Options(TypedDict, total=False):
    """What else there is to say of a recording."""

    n: int  # times each arm is asked each task, 1 unless told
    only: Collection[str]  # these arms; else all but a judge
    concurrency: int  # calls at a time, 64 unless told
    budget: float | None  # USD, earlier runs of the same recording and the judge included
    canonical: str  # which answers a judge takes for one, "exact" unless told
    unpriced: Unpriced  # "error" unless told; "refuse" leaves such arms out
    ledger: Ledger | None
    seed: int | None  # sent as `seed`, plus the draw's number
    fresh: bool  # begin anew, whatever the journal holds


@dataclass
class Recorder:
    """A recording that has been checked, and how far it is. Raises Misuse for what can be known before a call is paid.

    `await run()` makes the calls that the journal lacks, scores all and writes the table. A cancelled or killed run
    loses at most the calls in flight: `run()` of an equal Recorder goes on. It runs once.
    """

    tasks: Sequence[Task]
    arms: Mapping[str, Arm]
    scoring: str
    output: Path
    options: Options = field(default_factory=Options)
    tell: Callable[[], object] = lambda: None  # called whenever a figure below has changed

    done: int = 0  # calls in the journal
    made: int = 0  # of them by this run
    spent: int = 0  # nano-dollars, of all runs
    judged: int = 0
    stopped: str = ""  # why it ended early
    written: int = 0  # tasks in the table
    failures: dict[Key, Line] = field(default_factory=dict)  # calls that the next start makes anew
    failed: Counter[str] = field(default_factory=Counter)  # calls that brought no answer, by arm
    unjudged: int = 0  # answers that the judge has yet to see
    left_out: list[str] = field(default_factory=list)  # arms without a price
    repriced: dict[str, list[Any]] = field(default_factory=dict)  # arms with the prices of their calls, if several

    def __post_init__(self) -> None:
        given = self.options
        self.n, self.concurrency = given.get("n", 1), given.get("concurrency", 64)
        for name in ("n", "concurrency"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name}={getattr(self, name)}: give 1 or more.")
        check_name(self.output)
        self.journal_path = self.output.with_name(f"{self.output.name}.journal.jsonl")
        if self.output.exists() and not self.journal_path.exists() and not given.get("fresh"):
            raise Misuse(f"{self.output} is there and was not recorded: name another table by -o, or say --fresh.")
        self.scorer: Scorer | Judge = scorer(self.scoring, arms=self.arms)
        self.same = canonicaliser(given.get("canonical", "exact")) if isinstance(self.scorer, Judge) else str
        if twice := [item for item, count in Counter(task.id for task in self.tasks).items() if count > 1]:
            raise Misuse(f"two tasks have the id {twice[0]!r}: give each one of its own.")
        for task in self.tasks:
            self.scorer.check(task)
            if taken := sorted(task.columns.keys() & OURS):
                raise Misuse(f"task {task.id!r}: the table has a column {taken[0]!r} of its own; rename the task's.")
        limit, unpriced = Budget(session=given.get("budget")), given.get("unpriced", "error")
        shared = Serving(budget=limit, ledger=given.get("ledger"), unpriced=unpriced, name="record", bench_after=None)
        self._dispatch = Dispatch(self.arms, **shared)
        self.names = self._names(given.get("only"))
        judge = [self.scorer.arm] if isinstance(self.scorer, Judge) else []
        self._dispatch.check((*self.names, *judge))
        self.total = len(self.tasks) * len(self.names) * self.n

    def _names(self, only: Collection[str] | None) -> list[str]:
        if only and (unknown := [name for name in only if name not in self.arms]):
            raise Misuse(f"there is no arm {unknown[0]!r}; there are {', '.join(self.arms)}.")
        judge = self.scorer.arm if isinstance(self.scorer, Judge) else None
        names = [name for name in self.arms if (name in only if only else name != judge)]
        if self.options.get("unpriced") == "refuse":
            self.left_out = [name for name in names if self.arms[name].known_price is None]
        if not (names := [name for name in names if name not in self.left_out]):
            raise Misuse("there is no arm to record: name some by --only, and give them prices.")
        return names

    @property
    def failing(self) -> int:
        """Calls that brought no answer so far."""
        return self.failed.total() + len(self.failures)

    def remarks(self) -> Iterator[str]:
        """What its owner should know, a sentence each."""
        if self.left_out:
            yield f"Left out, since nobody knows what they cost: {', '.join(self.left_out)}."
        if told := ", ".join(f"{arm} {count:,}" for arm, count in self.failed.items() if count):
            yield f"Calls that brought no answer, scored 0: {told}."
        for (arm, error), count in Counter((key[1], line["error"]) for key, line in self.failures.items()).items():
            many, again = ("s", "they are") if count != 1 else ("", "it is")
            yield f"{count:,} call{many} of {arm} failed ({error}); {again} made again by the next start."
        if self.unjudged:
            yield f"{self.unjudged:,} answers have yet to be judged; their tasks are not in the table."
        for arm, prices in self.repriced.items():
            told = ", then at ".join(map(price_said, prices))
            yield f"Calls of {arm} were made at {told}: each is in the table at its own price, or say --fresh."
        if self.stopped:
            yield f"Stopped: {self.stopped}."

    @property
    def complete(self) -> bool:
        """Whether the table holds everything, and no later start could better it."""
        again = any(line["error"] in _AGAIN for line in self.failures.values())
        return not self.stopped and not again and self.written == len(self.tasks)

    async def run(self) -> None:
        """Record. Raises PlaycallError where the journal or the table cannot be used, ScoreError for a bad scorer."""
        with Journal(self.journal_path, fresh=self.options.get("fresh", False)) as self._journal:
            self._begin()
            try:
                todo = [key for key in self._keys() if key not in self._journal.calls]
                for _ in range(PASSES):
                    await self._each(iter(todo), self._call)
                    todo = [key for key in todo if self.failures.get(key, {}).get("error") in _AGAIN]
                self._scores = np.full((len(self.tasks), len(self.names), self.n), np.nan)
                self._scored = np.zeros(len(self.tasks), bool)
                await self._each(iter(range(len(self.tasks))), self._score)
                self._write()
            finally:
                self._end()
                if ledger := self.options.get("ledger"):
                    with anyio.CancelScope(shield=True):
                        await ledger.flush()

    def _begin(self) -> None:
        journal, session = self._journal, self._dispatch.budget.session
        seed = {} if self.options.get("seed") is None else {"seed": self.options.get("seed")}
        settings = {name: {**settings_of(self.arms[name]), **seed} for name in self.names}
        prices = {name: price_of(self.arms[name]) for name in self.names}
        journal.begin({task.id: task.digest for task in self.tasks}, settings, prices)
        self.repriced = {name: told for name in self.names if len(told := journal.heads["prices"][name]) > 1}
        self.spent = session.spent = journal.spent
        for key in self._keys():
            if key in journal.calls:
                self.done += 1
                self.failed[key[1]] += bool(journal.read(key)["error"])
        self._ids = {task.id: task for task in self.tasks}
        self.tell()

    def _end(self) -> None:
        if lines := len(self._journal.unsaved):
            why, saved = self._journal.full, self._journal.save()
            safe = sum(key in self._journal.calls for key in self._keys())
            self.done, self.made = safe, self.made + safe - self.done
            how = f"{self.journal_path} {'could not be written for a while' if saved else 'cannot be written'} ({why})"
            left = "all is saved now" if saved else f"{len(self._journal.unsaved)} of {lines} answers are lost"
            self.stopped = f"{how}: {left}; make room and start again: what is saved is not paid again"

    def _keys(self) -> Iterator[Key]:
        return ((task.id, arm, draw) for task in self.tasks for arm in self.names for draw in range(self.n))

    async def _each(self, todo: Iterator[Any], work: Callable[[Any], Any]) -> None:
        """Work on all, some at a time; at an error what is in flight is still waited for."""
        broken: list[PlaycallError] = []

        async def one() -> None:
            for what in todo:
                if broken:
                    return
                try:
                    await work(what)
                    await checkpoint()
                except PlaycallError as error:  # the others' answers are paid for: wait for them
                    broken.append(error)

        try:
            async with anyio.create_task_group() as group:
                for _ in range(self.concurrency):
                    group.start_soon(one)
        except BaseExceptionGroup as error:
            raise only_error(error) from None
        if broken:
            raise broken[0]

    async def _call(self, key: Key) -> None:
        if self.stopped:
            return
        item, arm, draw = key
        attempt = Attempt(self._asked(self._ids[item], arm, draw), arm, draw, None, 0, node="record")
        try:
            attempt.reply = await self._dispatch(attempt)
        finally:
            self._note(key, attempt)
        self.tell()

    def _asked(self, task: Task, arm: str, draw: int) -> object:
        seed = self.options.get("seed")
        if seed is None or isinstance(self.arms[arm].endpoint, Agent | Played):
            return task.task
        return request_of(task.task, None, self.arms[arm].model, {"seed": seed + draw})

    def _note(self, key: Key, attempt: Attempt) -> None:
        """Enter a call that has ended, one way or another."""
        self.failures.pop(key, None)
        error, _, detail = attempt.reply.error.partition(": ") if attempt.reply else ("", "", "")
        line = line_of(attempt, self.arms[key[1]])
        if attempt.reply is None:  # cancelled
            if attempt.price:
                self._journal.add({"lost": key, "nano": attempt.price})
        elif error in _UNKEPT:
            self.failures[key] = line
            if attempt.price:
                self._journal.add({"lost": key, "nano": attempt.price, "error": error})
            if error in _STOPPING:
                self._stop(key[1], error, detail)
        else:
            if self._journal.add({"call": key, **line, "detail": detail}):
                self.done, self.made = self.done + 1, self.made + 1
            self.failed[key[1]] += bool(error)
        self.spent += attempt.price
        if self._journal.full and not self.stopped:
            self.stopped = self._journal.full

    def _stop(self, arm: str, error: str, detail: str) -> None:
        if error == Failure.BUDGET:
            self.stopped = self.stopped or f"the budget is reached: {detail}; raise --budget"
        else:
            self.stopped = f"arm {arm!r}: {error}: {detail}; mend it, or leave it out by --only, and start again"

    async def _score(self, index: int) -> None:
        """Score the answers to one task; equal ones once."""
        task, told, whole = self.tasks[index], dict[str, float | None](), True
        for a, arm in enumerate(self.names):
            for draw in range(self.n):
                line = self._line((task.id, arm, draw))
                if line is None:
                    whole = False
                elif line["error"]:
                    self._scores[index, a, draw] = 0
                else:
                    answer = self.same(line["answer"])
                    try:
                        if answer not in told:
                            told[answer] = await self._graded(task, answer, line["answer"])
                    except CallFailed:
                        self.unjudged, whole = self.unjudged + 1, False
                    else:
                        score = told[answer]
                        self._scores[index, a, draw] = np.nan if score is None else score
        self._scored[index] = whole
        self.tell()

    async def _graded(self, task: Task, same: str, answer: str) -> float | None:
        judge = self.scorer
        if not isinstance(judge, Judge):
            return await judge(task, answer)
        about = [PROMPT, settings_of(self.arms[judge.arm]), task.id, task.digest, task.reference, same]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        if digest in self._journal.verdicts:
            return self._journal.verdicts[digest]
        if self.stopped:
            raise CallFailed(Failure.BUDGET)
        attempt = Attempt(task.task, judge.arm, PROMPTED, judge.prompt(task, answer), 0, node="judge", role="judge")
        score: float | None = None
        error: str | None = None
        try:
            reply = await self._dispatch(attempt)
            error, _, detail = reply.error.partition(": ")
            score = None if error else verdict(reply.key)  # an answer of its own that is none is no verdict
        finally:
            self.spent += attempt.price
            kind = "lost" if error is None or error in _UNKEPT else "verdict"
            self._journal.add({kind: digest, "score": score, "nano": attempt.price, "error": error})
        if error in _STOPPING:
            self._stop(judge.arm, error, detail)
        if error in _UNKEPT:
            raise CallFailed(Failure(error), detail)
        self.judged += 1
        return score

    def _line(self, key: Key) -> Line | None:
        """What is known of a call: from the journal, or that it failed for now."""
        if key in self._journal.calls:
            return self._journal.read(key)
        line = self.failures.get(key)
        return None if line is None or line["error"] in _STOPPING else line

    def _write(self) -> None:
        """The table, of the tasks that are complete."""
        if self._journal.full or not self._scored.any():
            return
        names = dict.fromkeys(name for task in self.tasks for name in task.columns)
        extra = {name: type_of(task.columns.get(name) for task in self.tasks) for name in names}
        types = {k: v for k, v in OURS.items() if k != "reference" or any(t.reference is not None for t in self.tasks)}
        types |= extra
        self.written = int(self._scored.sum())
        write_table(self.output, types, (tuple(row[name] for name in types) for row in self._rows(extra)))

    def _rows(self, extra: Mapping[str, type]) -> Iterator[Mapping[str, Any]]:
        for index in np.flatnonzero(self._scored).tolist():
            task = self.tasks[index]
            own = {name: as_type(task.columns.get(name), kind) for name, kind in extra.items()}
            own |= {"item": task.id, "reference": as_type(task.reference, str)}
            for (a, arm), draw in ((pair, draw) for pair in enumerate(self.names) for draw in range(self.n)):
                line = self._line((task.id, arm, draw))
                assert line is not None
                told = ("confidence", "input_tokens", "output_tokens", "finish", "estimated")
                yield {
                    **own,
                    **{name: line[name] for name in told},
                    "arm": arm,
                    "sample": draw,
                    "score": plain(self._scores[index, a, draw].item()),
                    "answer": line["answer"],
                    "cost_usd": line["nano"] / NANO,
                    "prompt_cost_usd": None if line["prompt_nano"] is None else line["prompt_nano"] / NANO,
                    "cost_nano": line["nano"],
                    "latency_s": line["us"] / 1e6,
                    "error": line["error"] or None,
                }


async def record(
    tasks: Sequence[Task], arms: Mapping[str, Arm], *, scorer: str, output: str | Path, **options: Unpack[Options]
) -> Recorder:
    """Ask every arm every task, n times, and write the table; what an earlier run of it paid for is not asked again.

    Returns the Recorder, which says how it went: `complete`, `stopped`, `spent` (nano-dollars), `failed`, ...
    """
    recorder = Recorder(tasks, arms, scorer, Path(output), options)
    await recorder.run()
    return recorder
