"""Canonicalisers: which answers are equal."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playcall.strategies import Misuse
from playcall.strategies.canonical import canonicaliser

BUILT_IN = ("exact", "number", "choice", "json", "function-call")

ALIKE = {
    "exact": [["Paris"], [" Paris\n"], ["paris"]],
    "number": [
        [
            "0.5",
            ".50",
            "1/2",
            "2 / 4",
            r"\frac{1}{2}",
            r"\dfrac{1}{2}",
            "+0.50",
            "5e-1",
            r"so \boxed{\frac12} or \boxed{0.5}",
        ],
        [
            "1,234",
            "1234",
            "$1,234.00",
            "1{,}234",
            "€ 1,234",
            "So she pays $1,234.",
            "1 and 2 make\n#### 1,234",
            "1.234e3",
        ],
        ["50", "50%", r"50\%", "50.0 percent"],  # GSM8K's "what percent" is answered both ways
        ["-3", "−3", "x = -3", "$-3", "-3."],
        ["4", "GPT-4", "12 / 3 = 4", "2, 3, 4"],
        ["1/0"],
        ["no number", " no number "],
        ["1e99999"],  # would be a number of 100,000 digits
        [""],
    ],
    "choice": [
        ["A", "(A)", "a", "Answer: A", "The answer is A.", "A) Paris", "A is right", "I think A", "Option A"],
        [
            "B",
            "(B)",
            "B.",
            "b",
            "Answer: B",
            "Answer: b",
            "**B**",
            "the answer is (b).",
            r"\boxed{\text{B}}",
            "B: Paris",
        ],
        [
            "C",
            "Not A: it is too old. The answer is C",
            "A is wrong. Answer: C",
            "I choose (C)",
            "(C) Paris, or so I think",
        ],
        ["B or C"],
        ["both A and B"],
        ["the answer is a dog"],
        ["I think so"],
        [""],
    ],
    "json": [
        ['{"a": 1, "b": [2, 3]}', '{"b":[2.0,3],"a":1.0}', '```json\n{"b": [2, 3], "a": 1}\n```'],
        ['{"a": 1, "b": [3, 2]}'],
        ['{"a": true, "b": [2, 3]}'],
        ['{"a": "1", "b": [2, 3]}'],
        ["{a: 1}", " {a: 1}"],
    ],
    "function-call": [
        [
            'f(a=1, b="x")',
            "[f(b='x', a=1.0)]",
            '[{"name": "f", "arguments": {"b": "x", "a": 1}}]',
            '{"name": "f", "arguments": "{\\"a\\": 1, \\"b\\": \\"x\\"}"}',
            '[{"type": "function", "function": {"name": "f", "arguments": "{\\"b\\": \\"x\\", \\"a\\": 1}"}}]',
            '[{"f": {"a": 1, "b": "x"}}]',
            "```python\nf(a=1, b='x')\n```",
        ],
        ["f(a=1, b='y')"],
        ["g(a=1, b='x')"],
        ["[f(a=1), f(a=2)]", "f(a=1), f(a=2)", '[{"f": {"a": 1}}, {"f": {"a": 2}}]'],
        ["[f(a=2), f(a=1)]"],
        ["[]", " [] ", "no call at all", "I cannot do that."],  # all decline to call
        ["a.b(c=[1, {'d': 2}])", '{"a.b": {"c": [1.0, {"d": 2}]}}'],
        ["f(x)", " f(x)"],  # a name has no value: only the text itself is equal
    ],
}


@pytest.mark.parametrize("name", ALIKE)
def test_answers_of_one_group_are_equal_and_of_two_groups_are_not(name: str) -> None:
    read = canonicaliser(name)
    keys = [{read(text) for text in group} for group in ALIKE[name]]
    assert [len(key) for key in keys] == [1] * len(keys), keys
    assert len(set().union(*keys)) == len(keys), keys


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_key_is_its_own_key(name: str) -> None:
    read = canonicaliser(name)
    for text in itertools.chain.from_iterable(ALIKE[name]):
        assert read(read(text)) == read(text)


TRICKY = st.sampled_from(list("[]{}()\\'\"/,.:=#$%*-+_ \n\0ABIab019eE\ud800−²")) | st.sampled_from(
    ["\\boxed{", "\\frac{", "####", "```json\n", "Answer", " is ", "1e9", "f(a=", "null", "true"]
)


@pytest.mark.parametrize("name", BUILT_IN)
@given(text=st.text(max_size=30) | st.lists(TRICKY, max_size=12).map("".join))
def test_no_text_makes_a_built_in_one_raise(name: str, text: str) -> None:
    assert isinstance(canonicaliser(name)(text), str)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "(" * 100_000, "-" * 100_000 + "1", "#" * 100_000, "9" * 5_000, "1e999999999"]
)
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_monstrous_text_is_left_as_it_is_or_read_in_no_time(name: str, text: str) -> None:
    assert isinstance(canonicaliser(name)(text), str)


def test_calls_are_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    canonicaliser("function-call")(f"open({str(trap)!r}, mode='w'), __import__('os').mkdir({str(trap)!r})")
    assert not trap.exists()


def test_a_users_own_is_imported_and_what_it_returns_is_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_canonical.py").write_text("def last_word(text):\n    return text.split()[-1]\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert canonicaliser("my_canonical:last_word")("it is Paris") == "Paris"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nunber", "write one of exact, number, choice, json, function-call"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("json:no_such_function", "no attribute 'no_such_function'"),
        (":f", "write module:function"),
    ],
)
def test_an_unknown_name_is_misuse_and_says_what_there_is(name: str, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        canonicaliser(name)
    assert repr(name) in str(caught.value)
