"""A strategy in the place of a vendor's call, or of any function of yours that takes a model."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import anyio

from playcall.strategies.algebra import Then
from playcall.strategies.anthropic import completion_of, is_message
from playcall.strategies.arm import Arm
from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.completion import CONFIDENCES, failed_client, read_completion, tidy
from playcall.strategies.dispatch import Dispatch
from playcall.strategies.engine import arms_of, places, unchecked, walk
from playcall.strategies.errors import Misuse, PlaycallError
from playcall.strategies.feed import in_portal, in_thread
from playcall.strategies.live import Live, NoAnswer, Result, Run
from playcall.strategies.prices import Price
from playcall.strategies.relay import Reading, Relay
from playcall.strategies.requests import as_json, refuse_merging_tools
from playcall.strategies.runner import Runner
from playcall.strategies.sources import is_async, name_of

F = TypeVar("F", bound=Callable[..., Any])


def wrap(runner: Runner, create: F) -> F:
    """See `Runner.wrap`."""
    inner, client = _without_retries(create)
    known = _Function(inner, "wrap", ("model", "messages"), client)
    return _instead(create, runner, known, lambda args, kwargs: _Vendor(runner, known, args, kwargs))


def call(runner: Runner, function: F) -> F:
    """See `Runner.call`."""
    known = _Function(function, "call", ("model",))
    if "model" not in known.parameters or known.parameters["model"].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise Misuse(
            f"call: {known.name} has no parameter `model` to give by name, which each arm is to fill; give it one."
        )
    for name in arms_of(runner.strategy):
        if strange := [setting for setting in _params(runner, name) if not known.accepts(setting)]:
            raise Misuse(f"call: arm {name!r} has the setting {strange[0]!r}, and {known.name} has no such parameter.")
    return _instead(function, runner, known, lambda args, kwargs: _Own(runner, known, args, kwargs))


def _instead(
    function: F, runner: Runner, known: _Function, asked: Callable[[tuple[Any, ...], dict[str, Any]], _Request]
) -> F:
    """A function in the place of another."""
    unlimited = {**runner.options, "budget": None}  # a request may yet say max_tokens
    arms = {name: _arm(runner, name, known) for name in arms_of(runner.strategy)}
    Dispatch(arms, **unlimited).check(arms)  # type: ignore[arg-type]
    if known.is_async:

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            return await asked(args, kwargs).answer()
    else:

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return in_portal(asked(args, kwargs).answer)

    return cast(F, run)


class _Function:
    """What is known of a function; an Endpoint's name and tenant."""

    def __init__(self, function: Callable[..., Any], where: str, takes: tuple[str, ...], client: Any = None) -> None:
        try:
            self.parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise Misuse(f"{where} was given {function!r}; give a function that takes {', '.join(takes)}.") from error
        bare = inspect.unwrap(function)
        if inspect.isasyncgenfunction(bare) or inspect.isgeneratorfunction(bare):
            raise Misuse(f"{where} was given {function!r}, which yields; give a function that returns its answer.")
        self.function, self.secrets = function, str(getattr(client, "api_key", ""))
        self.open = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        self.is_async, self.name = is_async(function), name_of(bare)
        self.place, self.tenant = self.name, f"{id(bare):x}"
        if client is not None:
            self.place = urlsplit(str(getattr(client, "base_url", ""))).netloc or self.name
            who = [repr(getattr(client, of, None)) for of in ("api_key", "organization", "project", "_custom_headers")]
            self.tenant = hashlib.sha256("\n".join(who).encode()).hexdigest()[:16]
        if lacks := [name for name in takes if not self.accepts(name)]:
            raise Misuse(f"{where}: {self.name} has no parameter `{lacks[0]}`, so that arms cannot be put there.")

    def accepts(self, name: str) -> bool:
        """Whether it may be given by keyword."""
        return self.open or name in self.parameters

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """The arguments by name; the model may be left out. Raises TypeError as the function would."""
        signature = inspect.Signature(list(self.parameters.values()))
        given = signature.bind_partial(*args, **kwargs).arguments
        anew = {} if "model" in given or "model" in kwargs else {"model": ""}
        return signature.bind(*args, **anew, **kwargs)

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call it: on this loop, or in a thread, which is left to itself where the call is cancelled."""
        if self.is_async:
            return await self.function(*args, **kwargs)
        return await in_thread(functools.partial(self.function, *args, **kwargs))


class _Request:
    """One call of a wrapped function: the Endpoint of its arms."""

    garbage: type[Exception] | tuple[()] = ()  # raised where what came cannot be read

    def __init__(self, runner: Runner, known: _Function) -> None:
        self.runner, self.known, self.name, self.tenant = runner, known, known.place, known.tenant
        self.task: object = None
        self.fields: dict[str, Any] = {}  # of the request, for all arms
        self.cached, self.relay = True, cast(Relay | None, None)
        self.cause: Exception | None = None  # the last error

    async def answer(self) -> Any:
        """What the function would have returned."""
        streams = self.relay is not None
        arms = {
            name: replace(
                _arm(self.runner, name, self), params={**self.fields, **_params(self.runner, name)}, stream=streams
            )
            for name in arms_of(self.runner.strategy)
        }
        if not self.cached:
            arms = {name: replace(arm, cache=False, losers="cancel") for name, arm in arms.items()}
        dispatch = Dispatch(arms, **self.runner.options)
        dispatch.check(arms)
        play = Live(dispatch)(self.runner._within(None))
        if self.relay is not None:
            return await self.relay.passed(lambda run: self.runner._run(play, self.task, run))
        result = await self.runner._run(play, self.task, Run())
        if not result.answered:
            raise NoAnswer(result) from self.cause
        return self.output(result)

    def output(self, result: Result) -> Any:
        return result.output

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is called with."""
        raise NotImplementedError

    def read(self, call: Call, made: Any) -> Answer:
        """What came; raises CallFailed."""
        raise NotImplementedError

    async def __call__(self, call: Call) -> Answer:
        args, kwargs = self.arguments(call)
        reading = None if self.relay is None else Reading(self.relay, call, self.failed)
        try:
            with anyio.fail_after(call.timeout):
                made = await self.known.run(*args, **kwargs)
                if reading is not None:
                    made = await reading.begin(made, None if self.known.is_async else in_thread)
        except Exception as error:
            raise self.failed(error) from error
        if reading is not None:
            return await reading.end(made)
        if inspect.isawaitable(made):
            raise Misuse(f"{self.known.name} returned something to await: write it as `async def`.")
        try:
            answer = self.read(call, made)
        except CallFailed as error:
            raise self._tidy(error) from None
        call.response = made
        if call.usage is None:
            call.heard = answer.text  # to estimate its bill by
        return answer

    def failed(self, error: Exception) -> CallFailed:
        """What an error of the function, or of the vendor's client in it, means."""
        if isinstance(error, CallFailed) or (isinstance(error, PlaycallError) and not isinstance(error, NoAnswer)):
            raise error
        self.cause = error
        found = CallFailed(Failure.GARBAGE, str(error)) if isinstance(error, self.garbage) else failed_client(error)
        return self._tidy(found)

    def _tidy(self, error: CallFailed) -> CallFailed:
        """The same, short and without keys."""
        keys = [self.known.secrets, *(str(v) for k, v in self.fields.items() if "key" in k)]
        return tidy(error, {key for key in keys if len(key) > 7})


class _Vendor(_Request):
    """A call of a vendor's function: a chat request."""

    garbage = json.JSONDecodeError

    def __init__(self, runner: Runner, known: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(runner, known)
        given = known.bind(args, kwargs).arguments
        more = [name for name, p in known.parameters.items() if p.kind is p.VAR_KEYWORD and name in given]
        given = {**{k: v for k, v in given.items() if k not in more}, **(given[more[0]] if more else {})}
        given = {k: v for k, v in given.items() if type(v).__name__ not in ("NotGiven", "Omit")}
        self.streaming: dict[str, Any] = {k: given.pop(k) for k in ("stream", "stream_options") if k in given}
        self.given = {k: v for k, v in given.items() if k != "model"}
        self.plain = {k: _plain(v) for k, v in self.given.items()}
        self.task = dict(self.plain)
        self.fields = {k: v for k, v in self.plain.items() if k != "messages"}
        self.responses: dict[int, object] = {}
        if any(isinstance(s, Then) for s in walk(runner.strategy)):
            refuse_merging_tools(self.task)
        self.kind: Any = _returned(known.function) if runner.options.get("cache") else None
        self.cached = self.kind is not None and not isinstance(self.given.get("response_format"), type)
        if self.streaming.get("stream"):
            strategy, self.cached = runner._within(None), False
            if unchecked(strategy) != set(places(strategy)):
                raise Misuse(
                    "stream=True: this strategy has to see whole answers before it keeps one, so that no stream of the "
                    "vendor's can be passed on. Ask without stream=True, or use policy.stream(...), which gives text."
                )
            options = self.streaming.get("stream_options") or {}
            if adds := not options.get("include_usage") and "stream_options" in known.parameters:
                self.streaming["stream_options"] = {**options, "include_usage": True}
            self.relay = Relay(unchecked(strategy), hides_usage=adds)

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        told = {k: self.given[k] if k in self.given and v is self.plain[k] else v for k, v in call.request.items()}
        if call.confidence in CONFIDENCES:
            told.setdefault("logprobs", True)
        if call.headers and self.known.accepts("extra_headers"):
            told["extra_headers"] = {**call.headers, **(told.get("extra_headers") or {})}
        strange = {k: told.pop(k) for k in list(told) if not self.known.accepts(k)}
        if strange:  # a setting of the arm's that the vendor's client has no name for
            told["extra_body"] = {**strange, **(told.get("extra_body") or {})}
        if self.known.name.startswith("litellm."):
            told = {"max_retries": 0, "num_retries": 0, **told}
        return (), {**told, **self.streaming}

    def read(self, call: Call, made: Any) -> Answer:
        if hasattr(made, "__enter__") or hasattr(made, "__aenter__"):
            raise Misuse(f"{self.known.name} returned a context manager: wrap the client's plain `create`.")
        raw = hasattr(made, "http_response") and callable(getattr(made, "parse", None))  # of with_raw_response
        body = _dumped(made.parse() if raw else made)
        answer = read_completion(call, completion_of(body) if is_message(body) else body)
        output = cast(object, body)
        self.responses[id(output)] = made
        return replace(answer, output=output)

    def output(self, result: Result) -> Any:
        if id(result.output) in self.responses:
            return self.responses[id(result.output)]
        body: Any = result.output  # from the cache
        lenient = self.known.name.startswith("openai.")
        return self.kind.construct(**body) if lenient else self.kind.model_validate(body)


class _Own(_Request):
    """A call of a user's own function."""

    def __init__(self, runner: Runner, known: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(runner, known)
        self.bound = known.bind(args, kwargs)
        told = {k: v for k, v in self.bound.arguments.items() if k not in ("model", "self", "cls")}
        self.only = next(iter(told)) if len(told) == 1 else None
        self.task = _plain(next(iter(told.values())) if self.only else told)
        if self.only is None and any(isinstance(s, Then) for s in walk(runner.strategy)):
            raise Misuse(
                f"the strategy reads answers with a prompt (>>), and {known.name} takes several arguments, so that "
                "nobody knows where the prompt belongs: give it one besides the model, or take the >> out."
            )

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = inspect.BoundArguments(self.bound.signature, OrderedDict(self.bound.arguments))
        bound.arguments |= {**_params(self.runner, call.arm), "model": call.model}
        if call.prompt is not None and self.only is not None:
            whole = isinstance(bound.arguments[self.only], list | tuple)
            bound.arguments[self.only] = [{"role": "user", "content": call.prompt}] if whole else call.prompt
        return bound.args, bound.kwargs

    def read(self, call: Call, made: Any) -> Answer:
        body = _dumped(made)
        if isinstance(body, dict) and "choices" in body and "usage" in body:
            return replace(read_completion(call, body), output=made)
        if made is None or (isinstance(made, str) and not made):
            raise CallFailed(Failure.EMPTY, "the function returned nothing")
        return Answer(made if isinstance(made, str) else as_json(_plain(made), sort_keys=True), made)


def _params(runner: Runner, name: str) -> Mapping[str, Any]:
    return runner.arms[name].params if runner.arms and name in runner.arms else {}


def _arm(runner: Runner, name: str, endpoint: Any) -> Arm:
    """The runner's arm of this name at this endpoint, else the model of this name."""
    arm = replace((runner.arms or {}).get(name) or Arm(endpoint, name), endpoint=endpoint)
    mean = runner.prices.get(name)
    return arm if arm.known_price is not None or mean is None else replace(arm, price=Price(call=mean, source="policy"))


def _without_retries(create: F) -> tuple[F, Any]:
    """The same method of a client that does not retry, for ours would multiply with its; and the client."""
    if isinstance(create, functools.partial):
        inner, client = _without_retries(create.func)
        return cast(F, functools.partial(inner, *create.args, **create.keywords)), client
    with suppress(Exception):  # whatever it is, it is no client of this make
        method: Any = create if hasattr(create, "__self__") else create.__wrapped__  # type: ignore[attr-defined]
        client = method.__self__._client
        fresh: Any = type(method.__self__)(client.with_options(max_retries=0))
        if method is not create and "raw" in create.__code__.co_qualname:
            fresh = fresh.with_raw_response
        elif method is not create:
            return create, client
        return getattr(fresh, method.__name__), client
    return create, None


def _returned(create: Callable[..., Any]) -> Any:
    """The class of a vendor's answers, None where its function does not say."""
    with suppress(Exception):  # annotations may name anything
        bare: Any = inspect.unwrap(create)  # of which other annotations may name what is not imported
        alone = SimpleNamespace(__annotations__={"return": bare.__annotations__["return"]})
        said = typing.get_type_hints(alone, bare.__globals__)["return"]
        return next(kind for kind in (*typing.get_args(said), said) if hasattr(kind, "model_validate"))
    return None


def _dumped(made: Any) -> Any:
    return made.model_dump(warnings=False) if hasattr(made, "model_dump") else made


def _plain(x: object) -> Any:
    """As JSON, itself where it is."""
    try:
        json.dumps(x)
        return x
    except (TypeError, ValueError):
        pass
    try:
        return json.loads(json.dumps(x, default=lambda y: y.model_dump() if hasattr(y, "model_dump") else str(y)))
    except (TypeError, ValueError):
        return str(x)
