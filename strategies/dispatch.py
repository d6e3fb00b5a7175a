"""Dispatch makes the calls of a strategy: retries, limits, budgets, bills, the ledger and the cache."""

from __future__ import annotations

import difflib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

import anyio

from playcall.strategies.arm import Arm
from playcall.strategies.budget import Budget, Hold
from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.calling import bill, called, drained, said, tokens_of
from playcall.strategies.canonical import canonicaliser
from playcall.strategies.completion import read_completion
from playcall.strategies.errors import Misuse
from playcall.strategies.limits import BENCH_AFTER, BENCH_FOR, Gate, domain, gates_of
from playcall.strategies.live import Attempt
from playcall.strategies.prices import Price, most_tokens
from playcall.strategies.recording import Reply
from playcall.strategies.requests import request_of
from playcall.strategies.signal import Signal, moment

if TYPE_CHECKING:  # with their databases
    from playcall.strategies.cache import Cache
    from playcall.strategies.ledger import Ledger

_FINAL = {Failure.AUTH, Failure.NOT_FOUND, Failure.REQUEST, Failure.QUOTA}  # the same request fails in the same way

Unpriced = Literal["error", "free", "refuse"]


_encode = json.JSONEncoder(sort_keys=True, default=str).encode


class Options(TypedDict, total=False):
    """What else a Dispatch takes."""

    budget: Budget | None
    ledger: Ledger | None
    cache: Cache | None
    canonical: str | Callable[[str], str]  # when answers are equal, "exact" unless told: see `canonicaliser`
    unpriced: Unpriced  # of arms whose price nobody knows: "error" unless told; "refuse" fails each call
    name: str  # of the strategy in the ledger
    bench_after: int | None  # failures in a row, 8 unless told; None never
    bench_for: float  # seconds, 15 unless told


_KINDS = {
    "budget": ("hold", "Budget(session=5)"),
    "ledger": ("add", "Ledger('calls.db')"),
    "cache": ("fetch", "Cache()"),
}


def _check(options: Options) -> None:
    """Raise Misuse for an option that does not exist, or is no such thing."""
    for name, value in options.items():
        if name not in Options.__annotations__:
            near = difflib.get_close_matches(name, Options.__annotations__) or sorted(Options.__annotations__)
            raise Misuse(f"there is no option {name!r}; did you mean {near[0]!r}?")
        method, such = _KINDS.get(name, ("", ""))
        if method and value is not None and not hasattr(value, method):
            raise Misuse(f"{name}={value!r}: give a {name.title()}, such as {such}.")
    if (unpriced := options.get("unpriced", "error")) not in get_args(Unpriced):
        raise Misuse(f"unpriced={unpriced!r}: write one of {', '.join(get_args(Unpriced))}.")


class Dispatch:
    """A Provider over arms by name. Give the same budget, ledger and cache to several to share them."""

    def __init__(self, arms: Mapping[str, Arm], **options: Unpack[Options]) -> None:
        _check(options)
        self.arms, self.name = dict(arms), options.get("name", "")
        self.budget = options.get("budget") or Budget()
        self.ledger, self.cache = options.get("ledger"), options.get("cache")
        self.unpriced = options.get("unpriced", "error")
        self.bench_after, self.bench_for = options.get("bench_after", BENCH_AFTER), options.get("bench_for", BENCH_FOR)
        self._where: object = ...  # the gates' domain, once there are some
        canonical = options.get("canonical", "exact")
        self.canonical = canonicaliser(canonical) if isinstance(canonical, str) else canonical

    def _gate(self, name: str) -> Gate:
        if self._where is ... or self._where is not domain():
            self._where = domain()
            self._gates = gates_of(self.arms, self._where)
        return self._gates[name]

    def check(self, names: Iterable[str]) -> None:
        """Raise Misuse for what would fail every call of these arms, or of their agents, before any is paid."""
        for name in names:
            if name not in self.arms:
                raise Misuse(f"the strategy asks {name!r}, and there is no such arm; there are {sorted(self.arms)}.")
            if self.arms[name].known_price == "calls":
                models: Mapping[str, str] = getattr(self.arms[name].endpoint, "models", {})
                self.check(set(models.values()) & self.arms.keys() - {name})
            price, limited = self.arms[name].known_price, self.budget.limits(name)
            if price is None and self.unpriced == "error":
                raise Misuse(
                    f"nobody knows what {name!r} ({self.arms[name].model}) costs: give it a price, or say unpriced="
                    "'free' (--unpriced free) to count its calls as free, or 'refuse' to fail them."
                )
            if limited and (price == "reported" or (price is None and self.unpriced == "free")):
                raise Misuse(f"{name!r} has no known price, so that its budget cannot be kept: give it one.")
            if limited and isinstance(price, Price) and price.output and self._worst_output(name) is None:
                raise Misuse(
                    f"the worst case of {name!r} is unknown, so that its budget cannot be kept: say max_tokens."
                )

    def _worst_output(self, name: str) -> int | None:
        return self.arms[name].most_output(self.arms[name].params)

    async def __call__(self, attempt: Attempt) -> Reply:
        if attempt.arm not in self.arms:
            self.check((attempt.arm,))
        arm = self.arms[attempt.arm]
        request = request_of(attempt.task, attempt.prompt, arm.model, arm.params)
        began = moment()
        try:
            answer = await self._answer(attempt, arm, request)
            key = self._key(answer)
        except CallFailed as failed:
            return Reply("", failed=True, price=attempt.price, latency=_us(began), error=str(failed))
        latency = _us(began)
        if (last := attempt.last) is not None:  # None where it shared another's
            if arm.clock == "provider" and last.served_ms:
                latency = max(1, round(last.served_ms * 1e3))
            if last.original is not None:
                latency = max(1, round(last.original * 1e6))
        return Reply(
            key,
            answer.score,
            price=attempt.price,
            latency=latency,
            output=answer.text if answer.output is None else answer.output,
        )

    def _key(self, answer: Answer) -> str:
        try:
            return str(self.canonical(answer.text))
        except Exception as error:  # the user's own function may say that an answer is none
            raise CallFailed(Failure.INVALID, f"canonicaliser: {error!r}") from error

    async def _answer(self, attempt: Attempt, arm: Arm, request: dict[str, Any]) -> Answer:
        if (refused := attempt.run.refused) and (failed := refused.get(_again(attempt, request))):
            raise failed
        try:
            if arm.together and attempt.prompt is None and not attempt.role:
                return await self._together(attempt, arm, request)
            if self.cache is None or not arm.cache:
                return await self._tries(attempt, arm, request)
            return await self._cached(attempt, arm, request, self.cache)
        except CallFailed as failed:
            if failed.failure in _FINAL:
                attempt.run.refused[_again(attempt, request)] = failed
            raise

    async def _cached(self, attempt: Attempt, arm: Arm, request: dict[str, Any], cache: Cache) -> Answer:
        from playcall.strategies.cache import key_of

        began, made, at = moment(), False, arm.endpoint
        also = {"confidence": arm.confidence, "headers": dict(arm.headers)}
        key = key_of(endpoint=at.name, tenant=at.tenant, request=request, draw=attempt.draw, **also)

        async def make() -> tuple[Answer, Call]:
            nonlocal made
            made = True
            answer = await self._tries(attempt, arm, request)
            assert attempt.last is not None
            return answer, replace(attempt.last, price=attempt.price)

        kept = await cache.fetch(key, make)
        if not made:
            call = self._call(attempt, arm, request)
            call.cached, call.saved, call.original, call.source = True, kept.price, kept.seconds, "cache"
            call.usage, call.finish, call.seconds = kept.usage, kept.finish, moment() - began
            self._enter(call, arm)
        return kept.answer

    async def _together(self, attempt: Attempt, arm: Arm, request: dict[str, Any]) -> Answer:
        """One of several answers to one request. The first draw makes it and pays; if that one is cancelled, or brings
        too few, the others ask by themselves."""
        beside = f"{attempt.arm} {attempt.node.removesuffix('.ask').rstrip('0123456789')}"
        open_, mine = attempt.run.batches.get(beside), Share()
        if open_ is not None:
            open_.append(mine)
            await mine.dealt.wait()
            if mine.failed:
                raise mine.failed
            return mine.answer or await self._tries(attempt, arm, request)
        shares = attempt.run.batches[beside] = [mine]
        await anyio.lowlevel.checkpoint()  # those that start at this moment join
        del attempt.run.batches[beside]
        try:
            try:
                return await self._tries(attempt, arm, {**request, "n": len(shares)} if len(shares) > 1 else request)
            finally:
                if len(shares) > 1 and attempt.last is not None:
                    deal(attempt.last, shares[1:])
        finally:
            for share in shares:
                share.dealt.set()

    async def _tries(self, attempt: Attempt, arm: Arm, request: dict[str, Any]) -> Answer:
        """One try, and more where the failure may pass, there is time, and tries are left."""
        try:
            return await self._try(attempt, arm, request)
        except CallFailed as failed:
            _tell(attempt, failed)
            if not failed.failure.passing or arm.tries == 1:
                raise
            return await self._more_tries(attempt, arm, request, failed)

    async def _more_tries(self, attempt: Attempt, arm: Arm, request: dict[str, Any], first: CallFailed) -> Answer:
        import tenacity

        gate, backoff = self._gate(attempt.arm), tenacity.wait_random_exponential(multiplier=arm.backoff, max=60)
        pending: list[CallFailed] = [first]

        def pause(state: tenacity.RetryCallState) -> float:
            error = state.outcome and state.outcome.exception()
            asked = error.retry_after if isinstance(error, CallFailed) else None
            return backoff(state) if asked is None else asked

        def enough(state: tenacity.RetryCallState) -> bool:
            ready = moment() + state.upcoming_sleep + (gate.fastest if gate.fastest < inf else 0)
            return state.attempt_number >= arm.tries or ready >= attempt.deadline

        async def one() -> Answer:
            if pending:
                raise pending.pop()  # the try that has been made
            try:
                return await self._try(attempt, arm, request)
            except CallFailed as failed:
                _tell(attempt, failed)
                raise

        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, CallFailed) and e.failure.passing),
            stop=enough,
            wait=pause,
            sleep=anyio.sleep,
            reraise=True,
        )(one)

    def _call(self, attempt: Attempt, arm: Arm, request: dict[str, Any]) -> Call:
        """The next try of an attempt, taken down in its trace."""
        call = Call(attempt.arm, arm.model, attempt.task, attempt.prompt, attempt.draw, request, arm.headers)
        call.run, call.strategy, call.node = attempt.run.id, self.name, attempt.node
        call.number = len(attempt.calls) + 1
        call.role = attempt.role or ("answer" if attempt.prompt is None else "reader")
        call.timeout, call.confidence, call.began = arm.timeout, arm.confidence, time.time()
        call.stream = attempt.run.cancels if arm.stream is None else arm.stream
        listener = attempt.run.listener
        if listener is not None and attempt.node in listener.nodes:
            call.listen = partial(listener.piece, attempt)
        attempt.calls.append(call)
        attempt.last = call
        return call

    async def _try(self, attempt: Attempt, arm: Arm, request: dict[str, Any]) -> Answer:
        """One try on the wire, priced and entered in the ledger however it ends."""
        call = self._call(attempt, arm, request)
        queued, gate, worst, hold = moment(), self._gate(attempt.arm), 0, None
        expected = self._expected(gate, arm, request)
        try:
            if self.unpriced == "refuse" and arm.known_price is None:
                raise CallFailed(Failure.UNPRICED, f"nobody knows what {arm.model!r} costs")
            gate.check(self.bench_after)
            if self.budget.limits(attempt.arm):
                worst = self._worst(arm, request)
            hold = await self.budget.hold(attempt.run.account, attempt.arm, worst)
            await gate.enter(expected)
        except BaseException as error:  # nothing was sent
            call.error, call.detail = said(error)
            call.cancelled = not isinstance(error, Exception)
            if hold is not None:
                self.budget.settle(hold, 0)
            raise
        call.sent = moment()
        call.waited = call.sent - queued

        call.agent, end = partial(self._ask, attempt), partial(self._end, attempt, arm, call, gate, hold, expected)
        if arm.losers == "drain":
            return await drained(arm.endpoint, call, end)
        return await called(arm.endpoint, call, end)

    def _end(
        self, attempt: Attempt, arm: Arm, call: Call, gate: Gate, hold: Hold, expected: int, error: CallFailed | None
    ) -> None:
        call.agent = None  # it leads back to the attempt, and cycles live until the garbage collector comes
        call.seconds = moment() - call.sent
        call.error, call.detail = said(error)
        bill(call, arm, error)
        unsure = call.estimated and not call.stream and (error is not None or call.cancelled)
        self.budget.settle(hold, max(call.price, hold.worst) if unsure else call.price)
        attempt.price += call.price
        used = call.usage or Usage()
        gate.leave(expected, used.input + used.output if expected else 0)
        if error is not None:
            gate.failed(error, self.bench_for)
        elif not call.cancelled:
            gate.answered(call.seconds)
        self._enter(call, arm)

    async def _ask(self, outer: Attempt, role: str, name: str, task: object, again: int) -> object:
        """A call of an agent's, as one of the attempt that runs it."""
        if name not in self.arms:
            self.check((name,))
        arm = self.arms[name]
        inner = Attempt(task, name, outer.draw * 1000 + again, None, outer.issued, run=outer.run, role=role)
        inner.node, inner.deadline = f"{outer.node}.{role}", outer.deadline
        try:
            answer = await self._answer(inner, arm, request_of(task, None, arm.model, arm.params))
        finally:
            outer.price += inner.price
            outer.calls += inner.calls
        return answer.text if answer.output is None else answer.output

    def _expected(self, gate: Gate, arm: Arm, request: dict[str, Any]) -> int:
        """Tokens to reserve of the allowance a minute, 0 where there is none."""
        if gate.tokens is None:
            return 0
        return tokens_of(request) + (arm.most_output(request) or 0)

    def _worst(self, arm: Arm, request: dict[str, Any]) -> int:
        price = arm.known_price
        if not isinstance(price, Price):
            return 0  # what it costs is held call by call, or nothing; `check` refused all else
        inputs, outputs = arm.most_input or most_tokens(request), arm.most_output(request)
        if (inputs is None and price.input) or (outputs is None and price.output):
            lacks = "most_input" if inputs is None else "max_tokens"
            raise CallFailed(Failure.BUDGET, f"its worst case is unknown: give the arm {lacks}")
        return price.worst(inputs or 0, outputs or 0)

    def _enter(self, call: Call, arm: Arm) -> None:
        if self.ledger is not None:
            try:
                told = _encode(call.request.get("messages", call.prompt))
            except (TypeError, ValueError, RecursionError):  # no JSON, and no reason to lose a row
                told = repr(call.request.get("messages", call.prompt))
            digest = hashlib.sha256(told.encode()).hexdigest()[:16]
            self.ledger.add(call, provider=arm.endpoint.name, prompt_hash=digest)


@dataclass
class Share:
    """What one draw gets of a request for several."""

    dealt: Signal = field(default_factory=Signal)
    answer: Answer | None = None
    failed: CallFailed | None = None


def deal(call: Call, shares: Sequence[Share]) -> None:
    """Give each share its own choice of a response; the first choice is the caller's."""
    body = call.response if isinstance(call.response, dict) else {}
    choices = body.get("choices")
    for share, choice in zip(shares, choices[1:] if isinstance(choices, list) else ()):
        try:
            share.answer = read_completion(replace(call), {**body, "choices": [choice]})
        except CallFailed as failed:
            share.failed = failed


def _tell(attempt: Attempt, error: CallFailed) -> None:
    call = attempt.last
    if attempt.run.listener is not None and call is not None and call.listen is not None and call.heard:
        attempt.run.listener.broken(attempt, error)


def _again(attempt: Attempt, request: Mapping[str, Any]) -> str:
    return repr((attempt.arm, request))


def _us(began: float) -> int:
    return max(1, round((moment() - began) * 1e6))
