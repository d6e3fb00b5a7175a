"""What calls cost, to the nano-dollar."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playcall.strategies import Misuse, PlaycallError
from playcall.strategies import prices as module
from playcall.strategies.call import Usage
from playcall.strategies.prices import Price, estimate_tokens, load_prices, mapped, most_tokens

usd = st.one_of(st.integers(0, 100), st.decimals(0, 1000, places=6).map(float))
some = st.integers(0, 10**7)


def test_cached_input_and_reasoning_have_prices_of_their_own() -> None:
    price = Price(input=2.5, output=10, cached=1.25, reasoning=12, call=0.001)
    dollars = 600 * 2.5e-6 + 400 * 1.25e-6 + 70 * 10e-6 + 30 * 12e-6 + 0.001
    assert price.bill(Usage(input=1000, output=100, cached=400, reasoning=30)) == round(dollars * 1e9)


def test_parts_that_have_no_price_cost_as_the_whole() -> None:
    assert Price(2.5, 10).bill(Usage(1000, 100, 400, 30)) == Price(2.5, 10).bill(Usage(1000, 100))


def test_half_a_nano_dollar_is_rounded_up_and_only_the_sum_is_rounded() -> None:
    price = Price(input=0.0375, output=0.0001)  # 37.5 and 0.1 nano-dollars a token
    assert [price.bill(Usage(input=n)) for n in (1, 2, 3)] == [38, 75, 113]
    assert [price.bill(Usage(output=n)) for n in (4, 5)] == [0, 1]
    assert price.bill(Usage(1, 4)) == 38


def test_figures_that_make_no_sense_never_make_a_negative_bill() -> None:
    price = Price(input=1, output=1, cached=0.1, reasoning=2)
    assert price.bill(Usage(input=10, cached=99)) == 1000
    assert price.bill(Usage(input=-5, output=-5, cached=3, reasoning=3)) == 0


@given(usd, usd, st.none() | usd, st.none() | usd, usd, some, some, st.floats(0, 1), st.floats(0, 1))
def test_bills_are_exact_and_never_above_the_worst_case(
    input: float,
    output: float,
    cached: float | None,
    reasoning: float | None,
    call: float,
    i: int,
    o: int,
    c: float,
    r: float,
) -> None:
    price = Price(input, output, cached, reasoning, call)
    usage = Usage(i, o, int(i * c), int(o * r))
    rates = [Decimal(str(x)) * 1000 for x in (input, output, input if cached is None else cached)]
    exact = (
        (i - usage.cached) * rates[0]
        + usage.cached * rates[2]
        + (o - usage.reasoning) * rates[1]
        + usage.reasoning * (rates[1] if reasoning is None else Decimal(str(reasoning)) * 1000)
        + Decimal(str(call)) * 10**9
    )
    assert price.bill(usage) == int(exact.quantize(Decimal(1), ROUND_HALF_UP))
    assert price.bill(usage) <= price.worst(i, o) <= price.worst(i + 1, o + 1)


def test_more_input_than_a_tier_holds_makes_the_whole_call_dearer() -> None:
    price = Price(1, 2, tiers=((200_000, Price(2, 3)),))
    assert price.bill(Usage(200_000, 10)) == 200_000 * 1000 + 10 * 2000
    assert price.bill(Usage(200_001, 10)) == 200_001 * 2000 + 10 * 3000
    assert price.worst(200_000, 10) == 200_000 * 1000 + 10 * 2000
    assert price.worst(200_001, 10) == 200_001 * 2000 + 10 * 3000


def test_writing_to_the_providers_cache_counts_in_the_worst_case() -> None:
    assert Price(3, 15, cached=0.3, written=3.75).worst(1000, 0) == 3_750_000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, -0.001, "1", True])
@pytest.mark.parametrize("field", ["input", "output", "cached", "reasoning", "call", "written"])
def test_a_price_that_is_none_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(Misuse, match=f"price {field}="):
        Price(**{field: value})  # type: ignore[arg-type]


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """(the map's entries) -> None: what litellm's map holds."""
    per = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 4e-06}

    def hold(**entries: dict[str, object]) -> None:
        found = {name.replace("__", "/"): {**per, **entry} for name, entry in entries.items()}
        monkeypatch.setattr(module, "price_map", lambda: found)
        mapped.cache_clear()

    yield hold
    mapped.cache_clear()


def test_the_map_gives_prices_by_name_and_by_the_vendors_own_name(prices) -> None:  # type: ignore[no-untyped-def]
    prices(m={"max_output_tokens": 99, "cache_read_input_token_cost": 1.5e-07}, groq__open={"litellm_provider": "groq"})
    assert mapped("m") == Price(1, 4, cached=0.15, source="map", most_output=99) == mapped("openai/m")
    assert mapped("groq/open") == Price(1, 4, source="map")
    assert [mapped(name) for name in ("open", "azure/m", "other", "m/")] == [None] * 4


def test_the_maps_tiers_are_kept(prices) -> None:  # type: ignore[no-untyped-def]
    above = {"input_cost_per_token_above_200k_tokens": 2e-06, "output_cost_per_token_above_200k_tokens_priority": 9e-06}
    ranges = [
        {"range": [0, 256e3], "input_cost_per_token": 5e-07, "output_cost_per_token": 1e-06},
        {"range": [256e3, 1e6], "input_cost_per_token": 2e-06, "output_cost_per_token": 3e-06},
    ]
    prices(a=above, b={"tiered_pricing": ranges})
    assert mapped("a") == Price(1, 4, source="map", tiers=((200_000, Price(2, 4, source="map")),))
    assert mapped("b") == Price(0.5, 1, source="map", tiers=((256_000, Price(2, 3, source="map")),))


def test_what_tokens_alone_do_not_price_has_no_price(prices) -> None:  # type: ignore[no-untyped-def]
    free = {"input_cost_per_token": 0, "output_cost_per_token": 0.0}
    prices(
        sound={"output_cost_per_audio_token": 8e-05},
        pictures={"mode": "image_generation"},
        unknown=free,
        seconds={"output_cost_per_token": None, "output_cost_per_second": 0.1},
        searches={"litellm_provider": "perplexity", "search_context_cost_per_query": {"search_context_size_low": 0.01}},
    )
    assert [mapped(name) for name in ("sound", "pictures", "unknown", "seconds", "searches")] == [None] * 5


def test_embeddings_are_priced_by_their_input(prices) -> None:  # type: ignore[no-untyped-def]
    prices(
        words={"mode": "embedding", "output_cost_per_token": 0.0},
        terse={"mode": "embedding", "output_cost_per_token": None, "input_cost_per_token_batches": 5e-07},
        pictures={"mode": "embedding", "input_cost_per_image_token": 1e-04},
        letters={"mode": "embedding", "input_cost_per_character": 1e-08},
        nothing={"mode": "embedding", "input_cost_per_token": None},
    )
    assert [mapped(name) for name in ("words", "terse")] == [Price(1, 0, source="map")] * 2
    assert [mapped(name) for name in ("pictures", "letters", "nothing")] == [None] * 3


def test_the_map_is_read_without_importing_litellm() -> None:
    code = (
        "import sys; from playcall.strategies.prices import mapped, price_map;"
        "good = [m for m in price_map() if mapped(m)]; print('litellm' in sys.modules, len(price_map()), len(good))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "False"
    assert int(told[1]) == 0 or int(told[2]) > 1000  # litellm may not be installed


ONE = {"gpt": {"input": 2.5, "output": 10, "cached": 1.25}, "agent": {"call": 0.01}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.json", json.dumps(ONE)),
        ("p.yaml", "gpt: {input: 2.5, output: 10, cached: 1.25}\nagent: {call: 1e-2}"),
        ("p.toml", "gpt = {input = 2.5, output = 10, cached = 1.25}\n[agent]\ncall = 0.01"),
    ],
)
def test_a_file_of_prices_may_be_json_yaml_or_toml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert load_prices(tmp_path / name) == {"gpt": Price(2.5, 10, cached=1.25), "agent": Price(call=0.01)}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"input": 1}, "give input and output"),
        ({}, "give input and output"),
        ({"input": 1, "output": 2, "ouput": 3}, "ouput"),
        ({"input": 1, "output": -2}, "output=-2"),
        ({"input": 1, "output": "dear"}, "output='dear'"),
        ({"input": 1, "output": True}, "output=True"),
        ({"input": 1, "output": None}, "output=None"),
        (3, "give input and output"),
    ],
)
def test_a_bad_price_is_refused_with_its_file_and_entry(tmp_path: Path, entry: object, said: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"good": ONE["gpt"], "bad": entry}))
    with pytest.raises(Misuse, match=r"mine\.json: bad: .*" + said):
        load_prices(path)


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = = b")
    (tmp_path / "x.yaml").write_text("- a")
    with pytest.raises(Misuse, match=r"x\.toml is not toml"):
        load_prices(tmp_path / "x.toml")
    with pytest.raises(Misuse, match=r"x\.yaml: write a mapping"):
        load_prices(tmp_path / "x.yaml")
    with pytest.raises(PlaycallError, match=r"no\.yaml cannot be read"):
        load_prices(tmp_path / "no.yaml")


def test_a_text_has_about_a_token_for_4_bytes() -> None:
    assert [estimate_tokens(x) for x in ("", "a", "abcd", "abcde", "日本", "\ud800")] == [0, 1, 1, 2, 2, 1]


def _chat(content: object, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


@given(st.text())
def test_no_text_has_more_tokens_than_its_bound(text: str) -> None:
    bound = most_tokens(_chat(text))
    assert bound is not None
    assert bound >= len(text.encode("utf-8", "surrogatepass")) + 16


def test_tools_and_schemas_count() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 500}}
    plain = most_tokens(_chat("hi")) or 0
    assert (most_tokens(_chat("hi", tools=[tool])) or 0) > plain + 500
    assert (most_tokens(_chat("hi", response_format={"schema": "y" * 300})) or 0) > plain + 300
    assert most_tokens(_chat([{"type": "text", "text": "hi"}])) is not None


@pytest.mark.parametrize(
    "request_",
    [
        _chat([{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
        _chat([{"type": "text", "text": "hi"}, {"type": "input_audio", "input_audio": {"data": ""}}]),
        _chat([{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]),
        _chat([{"type": "file", "file": {"file_id": "f"}}]),
        _chat("hi", web_search_options={}),
        _chat("hi", tools=[{"type": "web_search"}]),
        _chat("hi", previous_response_id="r"),
        {"messages": [{"role": "assistant", "audio": {"id": "a"}}]},
    ],
)
def test_what_bytes_do_not_bound_has_no_bound(request_: dict[str, object]) -> None:
    assert most_tokens(request_) is None


def test_input_that_is_written_to_the_providers_cache_is_billed_at_its_own_rate() -> None:
    price = Price(3, 15, cached=0.3, written=3.75)  # nano-dollars a token: 3,000, 15,000, 300 and 3,750
    assert price.bill(Usage(100, 10, cached=50, written=20)) == 30 * 3_000 + 50 * 300 + 20 * 3_750 + 10 * 15_000
