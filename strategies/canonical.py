"""When two answers are the same: named functions from a text to a key, equal keys being equal answers.

>>> canonicaliser("number")("So she pays $1,250.50."), canonicaliser("choice")("The answer is (b).")
('2501/2', 'B')
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from playcall.strategies.errors import Misuse
from playcall.strategies.sources import load_function

_FINAL = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}|####(.*)", re.DOTALL)
_FENCED = re.compile(r"\A\s*```\w*\n(.*)```\s*\Z", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+(?:\.\d+)?)?"
)
_CHOICES = (  # the letter alone, else called the answer, else leading, else by itself in a text (A and I may be words)
    r"\A[\W_]*([A-Za-z])[\W_]*\Z",
    r"(?i:\b(?:answer|option|choice)\b(?:\s*\w*\s+is)?)[\s:=*_\"'({\[]*"
    r"((?!I\s+[a-z])[A-Z]\b(?!['’-]|\s+(?:and|or)\b)|[a-z](?=\s*(?:[)\]}.,;:*]|\Z)))",
    r"\A[*_\s]*[(\[]?([A-Za-z])(?:[*_]*[)\].:]|\s+(?:is|because)\b)",
    r"(?<![\w'’.-])(?:[B-HJ-Z]|A(?!\s+(?!and\b|or\b)[a-z])|(?<=\()I(?=\)))(?![\w'’-])",
)


def canonicaliser(name: str) -> Callable[[str], str]:
    """The function of this name, or a user's own by `module:function`; Misuse if there is none.

    A built-in one never raises: a text that it cannot read becomes that text, stripped.
    """
    if name in _NAMED:
        return functools.partial(_or_stripped, _NAMED[name])
    if ":" not in name:
        raise Misuse(f"no canonicaliser {name!r}; write one of {', '.join(_NAMED)}, or your own as module:function.")
    read = load_function(name, "canonicaliser")
    return lambda text: str(read(text))


def _or_stripped(read: Callable[[str], str], text: str) -> str:
    try:
        return read(text)
    except Exception:  # models write anything
        return text.strip()


def number(text: str) -> str:
    r"""The number in a text as an exact fraction: what is boxed or after ####, else a sentence's last number.

    0.5, .50, 1/2 and \frac{1}{2} are equal. Thousands separators, currency and percent signs are dropped
    (answers to "what percent" come with and without one), so 50% is 50 and not 1/2.
    """
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"\1/\2", _final(text).replace("−", "-"))
    last = _NUMBER.findall(re.sub(r"\\?[$%€£¥₹]|\\[,!;]|[{}]", "", text))[-1].replace(",", "")
    if re.search(r"[eE][-+]?\d{4}", last):
        raise ValueError("too long to write out")
    top, _, bottom = last.partition("/")
    return str(Fraction(top.strip()) / Fraction(bottom.strip() or 1))


def choice(text: str) -> str:
    """The letter of an option, as a capital."""
    text = re.sub(r"\\(?:text|mathrm|textbf)\b", "", _final(text))
    *lasts, alone = (re.findall(pattern, text) for pattern in _CHOICES)
    (letter,) = next((found[-1] for found in lasts if found), None) or set(alone)
    return str(letter).upper()


def function_call(text: str) -> str:
    """Calls as [{"f":{"a":1}}] in their order; that of the arguments does not matter. Nothing is run.

    Reads JSON, {"name": "f", "arguments": {...}} or {"f": {...}}, and Python, `f(b="x", a=1)`; one call or a list.
    A text that does not begin like a call declines to call, and all that decline agree: [].
    """
    text = _FENCED.sub(r"\1", text).strip()
    if not re.match(r"[\[{]|[\w.]+\(", text):
        return "[]"
    try:
        value = json.loads(text)
    except ValueError:
        body: Any = ast.parse(text, mode="eval").body
        return _json([_from_python(call) for call in getattr(body, "elts", [body])])
    calls = [call.get("function", call) for call in (value if isinstance(value, list) else [value])]  # OpenAI's
    given = [call.get("arguments", {}) for call in calls]
    given = [json.loads(words) if isinstance(words, str) else words for words in given]
    return _json([{call["name"]: words} if "name" in call else call for call, words in zip(calls, given)])


def _from_python(call: Any) -> dict[str, Any]:
    words = [*enumerate(call.args), *((word.arg, word.value) for word in call.keywords)]
    return {ast.unparse(call.func): {name: ast.literal_eval(value) for name, value in words}}


def _json(value: object) -> str:
    """Without white space, keys sorted; 1.0 is 1."""
    value = json.loads(json.dumps(value), parse_float=lambda text: int(x) if (x := float(text)).is_integer() else x)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _final(text: str) -> str:
    r"""What the last \boxed{...} holds, or what is after ####; the text if there is neither."""
    return next((part for found in _FINAL.findall(text)[-1:] for part in found if part), text)


_NAMED: dict[str, Callable[[str], str]] = {
    "exact": str,
    "number": number,
    "choice": choice,
    "json": lambda text: _json(json.loads(_FENCED.sub(r"\1", text))),
    "function-call": function_call,
}
