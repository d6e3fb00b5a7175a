"""Options that several commands take, and commands made of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args

import typer

from playcall.evals import comparison as comparing
from playcall.strategies import Misuse, Strategy

Columns = Annotated[list[str] | None, typer.Option(help="ours=theirs, such as score=resolved; repeatable.")]
Where = Annotated[list[str] | None, typer.Option(help="column=value: only these rows; repeatable.")]
Canonical = Annotated[
    str, typer.Option(help="When answers are equal: exact, number, choice, json, function-call, module:function.")
]
Verifier = Annotated[
    str | None, typer.Option(help="A column to check answers by; `score` stands for a perfect checker.")
]
Yours = Annotated[list[str] | None, typer.Option(help="Your play: file.json or plays.py:name; repeatable.")]
Weights = Annotated[
    str | None, typer.Option(help="cost=..,latency=..: the quality that one USD, one second a task is worth.")
]


def renamed(columns: Sequence[str] | None, where: Sequence[str] | None) -> dict[str, str]:
    """The pairs of --columns; raises Misuse for what is no pair in either."""
    if bad := [option for option in [*(columns or []), *(where or [])] if "=" not in option]:
        raise Misuse(f"{bad[0]!r}: write name=value.")
    return dict(option.split("=", 1) for option in columns or [])


def strategies(names: Sequence[str] | None) -> dict[str, Strategy]:
    """The plays of --strategy by name."""
    named = [pair for text in names or [] for pair in comparing.strategy_file(text).items()]
    if len(found := dict(named)) < len(named):
        told = ", ".join(name for name, _ in named)
        raise Misuse(f"two of your strategies have the same name; name each anew: {told}.")
    return found


def weighted(text: str) -> dict[str, float]:
    """The weights of --weights."""
    try:
        pairs = {k.strip(): float(v) for k, v in (pair.split("=") for pair in text.split(",") if pair)}
    except ValueError:
        pairs = {}
    if len(pairs) < len([pair for pair in text.split(",") if pair]) or set(pairs) - {"cost", "latency"}:
        raise Misuse(f"--weights {text!r}: write cost=NUMBER,latency=NUMBER.")
    return pairs


def taking(makers: Mapping[str, Callable[..., object]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose first parameters are what the makers return; it takes their arguments in place of these.

    A maker's options stand in the help under its name in the mapping; an empty one is for those beside the command's.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        taken = [(made, inspect.signature(made, eval_str=True).parameters) for made in makers.values()]
        own = [*inspect.signature(command, eval_str=True).parameters.values()][len(taken) :]

        @wraps(command)
        def run(**given: Any) -> None:
            command(*[made(**{name: given.pop(name) for name in names}) for made, names in taken], **given)

        beside, apart = list[inspect.Parameter](), list[inspect.Parameter]()
        for panel, (_, names) in zip(makers, taken):
            (apart if panel else beside).extend(_under(panel, parameter) for parameter in names.values())
        every = [p.replace(kind=p.KEYWORD_ONLY) for p in (*beside, *own, *apart)]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorated


def _under(panel: str, parameter: inspect.Parameter) -> inspect.Parameter:
    if not panel:
        return parameter
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[kind, option])
