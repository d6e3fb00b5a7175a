"""Strategy files: what they hold, what comes back, and how a bad one is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf, nan
from typing import Literal

import numpy as np
import pytest

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Belief,
    Best,
    Misuse,
    Panel,
    Vote,
    Weight,
    cascade,
    decode,
    dump,
    encode,
    load,
    register,
)


@register
@dataclass(frozen=True)
class Middling:
    """A user's own rule."""

    span: tuple[float, ...]
    least: float | None = None
    strict: bool = False
    side: Literal["low", "high"] = "low"

    def __call__(self, panel: Panel) -> np.ndarray:
        return panel.alive


def test_a_file_is_plain_json_without_defaults() -> None:
    assert dump((2 * Ask("a")).until(Agree(2)).keep(Vote())) == {
        "playcall": 1,
        "strategy": {
            "Keep": {
                "source": {
                    "Gather": {
                        "parts": [{"Ask": {"arm": "a"}}, {"Ask": {"arm": "a"}}],
                        "stop": {"Agree": {"quorum": 2}},
                    }
                },
                "rule": {"Vote": {}},
            }
        },
    }


@pytest.mark.parametrize(
    "s",
    [
        cascade("a", "b", stop=Agree(2)),
        Ask("inf"),
        Ask("a").within(inf).keep(AtLeast(-inf)),
        Ask("a").keep(Vote(Belief((Weight("a", -inf, 2.0, "logprob"),), other=-1.0))),
        Ask("a").keep(Middling((0.5, inf))),
        Ask("a").keep(Middling((), least=-inf, strict=True, side="high")),
    ],
)
def test_infinity_and_a_users_rule_survive_valid_json(s: Ask) -> None:
    back = load(json.loads(json.dumps(dump(s), allow_nan=False)))
    assert back == s
    assert hash(back) == hash(s)


def test_whole_numbers_in_a_file_written_by_hand_are_numbers() -> None:
    rule = decode({"Middling": {"span": [1, 2], "least": 3}})
    assert rule == Middling((1.0, 2.0), 3.0)
    assert [type(x) for x in (*rule.span, rule.least)] == [float] * 3


ASK = {"Ask": {"arm": "a"}}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "not a strategy file"),
        ({"strategy": ASK}, "not a strategy file"),
        ({"playcall": 2, "strategy": ASK}, "version 2; this playcall reads version 1"),
        ({"playcall": 1, "strategy": {"Best": {}}}, "is a Best, which is not a node"),
        ({"playcall": 1, "strategy": "a"}, "is a str, which is not a node"),
        ({"playcall": 1, "strategy": {"Askk": {"arm": "a"}}}, "strategy: unknown kind 'Askk'; this playcall knows"),
        ({"playcall": 1, "strategy": {"Panel": {}}}, "unknown kind 'Panel'"),
        ({"playcall": 1, "strategy": {"Ask": {"arm": ""}}}, "write 'gpt-4o'"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_name(document: object, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        load(document)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({**ASK, "Best": {}}, r"found the keys \['Ask', 'Best'\]"),
        ({"Ask": {"arm": "a", "mood": 1}}, "Ask has the unknown field 'mood'; its fields are arm"),
        ({"Ask": ["a"]}, r"Ask has \['a'\]; its fields are arm"),
        ({"Ask": {}}, "Ask lacks its field 'arm'"),
        ({"Ask": {"arm": 3}}, r"strategy\.arm: 3 does not fit; expected str"),
        ({"Gather": {"parts": ASK}}, r"strategy\.parts: .* does not fit; expected tuple"),
        ({"Gather": {"parts": [ASK, {"Best": {}}]}}, r"strategy\.parts\[1\]: Best\(\) does not fit; expected Strategy"),
        ({"Gather": {"parts": [ASK, {"Askk": {}}]}}, r"strategy\.parts\[1\]: unknown kind 'Askk'"),
        ({"Within": {"source": ASK, "limit": True}}, r"strategy\.limit: True does not fit; expected float"),
        ({"Within": {"source": ASK, "limit": "soon"}}, "'soon' does not fit; expected float"),
        ({"Keep": {"source": ASK, "rule": ASK}}, r"Ask\(arm='a'\) does not fit; expected Rule"),
        ({"Keep": {"source": ASK, "rule": {"Agree": {"quorum": 2}}}}, "give a rule such as"),
        ({"Agree": {"quorum": 1.5}}, r"1\.5 does not fit; expected int"),
        ({"Vote": {"belief": {"Best": {}}}}, r"Best\(\) does not fit; expected .*Belief \| None"),
        ({"Weight": {"arm": "a", "bias": 1, "scale": "odds"}}, "'odds' does not fit; expected .*'logprob'"),
        ({"Middling": {"span": ["a"]}}, r"strategy\.span\[0\]: 'a' does not fit; expected float"),
        ({"Middling": {"span": [], "strict": 1}}, "1 does not fit; expected bool"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(value: object, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        decode(value)


@dataclass(frozen=True)
class Unregistered:
    def __call__(self, panel: Panel) -> np.ndarray:
        return panel.alive


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Ask("a").keep(Unregistered()), "Unregistered is not a known kind; decorate it with @register"),
        (AtLeast(nan), "nan cannot be saved"),
        (Middling([0.5]), r"\[0\.5\] cannot be saved in a strategy file; use numbers, text, tuples"),
        (Best, "cannot be saved"),
    ],
)
def test_what_json_cannot_hold_is_refused_when_saved(value: object, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        encode(value)


@pytest.mark.parametrize(
    "kind", [type("Free", (), {}), dataclass(type("Loose", (), {})), dataclass(frozen=True)(type("Best", (), {}))]
)
def test_only_frozen_dataclasses_of_a_new_name_can_be_registered(kind: type) -> None:
    with pytest.raises(Misuse, match="frozen dataclass whose name is not taken"):
        register(kind)
