"""Replay: every task of a recording in one numpy pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from playcall.strategies.algebra import Strategy
from playcall.strategies.engine import interpret
from playcall.strategies.errors import NotRecorded
from playcall.strategies.panel import FOREVER, PROMPTED, Floats, Ints, Mask, Panel, beside, microseconds
from playcall.strategies.recording import Recording, Reply
from playcall.strategies.rules import Never, Prompt, Rule, Stop

Timed = Callable[[Ints, Ints], Panel]
"""(when it starts, when it must end), each (rows,) -> Panel."""
Columns = tuple[Ints, Floats, Mask, Ints, Ints]
"""Answers, scores, failures, prices and latencies of a call."""


@dataclass(frozen=True)
class Replay:
    """Engine[Timed]. Replay(recording)(strategy) is the Panel of all its tasks.

    At one and the same moment arrivals come before starts. An arm whose latency was not recorded
    takes a microsecond a call.
    """

    recording: Recording

    def __call__(self, strategy: Strategy) -> Panel:
        start = np.zeros(len(self.recording), dtype=np.int64)
        return interpret(strategy, self)(start, np.full_like(start, FOREVER))

    @cached_property
    def codes(self) -> dict[str, int]:
        """The code of each text; replies to prompts join as they come, so that equal ones are equal answers."""
        return {text: code for code, text in enumerate(self.recording.texts)}

    def ask(self, arm: str, draw: int) -> Timed:
        d, k = self.recording.column(arm, draw)
        prompt = d.prompt[:, k] if d.prompt is not None and arm in self.recording.together else 0
        columns = d.answer[:, k], d.score[:, k], d.failed[:, k], d.price[:, k], d.latency[:, k]
        return _Asked(arm, draw, columns, prompt)

    def gather(self, parts: Sequence[Timed], stop: Stop, gap: float) -> Timed:
        wait = microseconds(gap)

        def run(start: Ints, deadline: Ints) -> Panel:
            begin, idle, panels, asked = start, start, list[Panel](), set[str]()
            for part in parts:
                panels.append(part(begin, deadline))
                if isinstance(part, _Asked) and not wait:
                    if part.arm in asked:
                        panels[-1] = replace(panels[-1], price=panels[-1].price - np.reshape(part.prompt, (-1, 1)))
                    asked.add(part.arm)
                idle = np.maximum(idle, panels[-1].end)
                begin = np.minimum(begin + wait, idle)
            if stop == Never():
                return beside(panels)
            whole, ends = beside(panels), np.stack([p.end for p in panels], axis=1)
            known = np.repeat(ends, [len(p.arm) for p in panels], axis=1)
            end = idle
            for moment in np.sort(ends, axis=1).T[::-1]:
                end = np.where(stop(whole.seen_at(moment, known)), moment, end)
            return whole.seen_at(end, known)

        return run

    def orelse(self, first: Timed, then: Timed) -> Timed:
        def run(start: Ints, deadline: Ints) -> Panel:
            a = first(start, deadline)
            skip = np.where(a.accepted, deadline, a.end)  # so that no prompt is looked up in vain
            return beside([a, then(skip, deadline).where(~a.accepted, a.end)])

        return run

    def keep(self, source: Timed, rule: Rule) -> Timed:
        return lambda start, deadline: source(start, deadline).keep(rule)

    def then(self, source: Timed, arm: str, prompt: Prompt) -> Timed:
        if not self.recording.answered:
            raise NotRecorded(f"{arm!r} is asked about answers, and {self.recording.name} holds none, only scores.")

        def run(start: Ints, deadline: Ints) -> Panel:
            s = source(start, deadline)
            asked, texts = s.accepted & (s.end < deadline), list(self.codes)
            replies = [Reply("", failed=True)] * len(start)
            for row in np.flatnonzero(asked):
                kept = [texts[a] for a in s.answer[row][s.alive[row]]]
                replies[row] = self.recording.cassette(arm, prompt(self.recording.items[row], kept))
            columns = (
                np.array([self.codes.setdefault(r.key, len(self.codes)) for r in replies], dtype=np.int64),
                np.array([r.score for r in replies], dtype=np.float64),
                np.array([r.failed for r in replies], dtype=np.bool_),
                np.array([r.price for r in replies], dtype=np.int64),
                np.array([r.latency for r in replies], dtype=np.int64),
            )
            reply = _called(s.end, deadline, arm, PROMPTED, columns).where(asked, s.end)
            return beside([replace(s, alive=np.zeros_like(s.alive)), reply])

        return run

    def within(self, source: Timed, limit: float) -> Timed:
        most = microseconds(limit)
        return lambda start, deadline: source(start, np.minimum(deadline, start + most))


@dataclass(frozen=True)
class _Asked:
    """A recorded call, at whatever time; `prompt` is the part of its price that it saves beside another of its arm."""

    arm: str
    draw: int
    columns: Columns
    prompt: Ints | int

    def __call__(self, start: Ints, deadline: Ints) -> Panel:
        return _called(start, deadline, self.arm, self.draw, self.columns)


def _called(start: Ints, deadline: Ints, arm: str, draw: int, columns: Columns) -> Panel:
    """One call that begins at `start`, unless the deadline has come."""
    answer, score, failed, price, latency = columns
    begun = start < deadline
    late = start + latency > deadline
    return Panel(
        arm=(arm,),
        draw=(draw,),
        answer=answer[:, None],
        score=score[:, None],
        alive=(begun & ~failed & ~late)[:, None],
        issued=np.where(begun, start, FOREVER)[:, None],
        price=price[:, None],
        failed=(begun & (failed | late))[:, None],
        end=np.where(begun, np.minimum(start + latency, deadline), start),
    )


@dataclass(frozen=True)
class Outcomes:
    """What a strategy came to on each task of a recording; each array is (tasks,)."""

    quality: Floats  # grade of the first survivor; 0 where nothing survived
    cost: Ints  # nano-dollars
    latency: Ints  # microseconds
    calls: Ints


def outcomes(strategy: Strategy, recording: Recording) -> Outcomes:
    """Replay a strategy and grade what it puts out.

    A reply to a prompt has no recorded grade, so a strategy that puts one out is refused.
    """
    panel = Replay(recording)(strategy)
    if PROMPTED in np.array(panel.draw)[panel.output[panel.accepted]]:
        raise NotRecorded("replies to prompts have no grades; record the judge or merger as an arm of its own.")
    grade = np.zeros((len(recording), len(panel.arm) + 1))  # the last column is "no answer"
    for i, (arm, draw) in enumerate(zip(panel.arm, panel.draw, strict=True)):
        if draw != PROMPTED:
            grade[:, i] = recording[arm].quality[:, draw]
    return Outcomes(
        quality=grade[np.arange(len(recording)), panel.output],
        cost=panel.cost,
        latency=panel.end,
        calls=panel.began.sum(axis=1),
    )
