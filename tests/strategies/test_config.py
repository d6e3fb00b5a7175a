"""Arms from a file: whatever is wrong is said with its place, and keys are never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from playcall.strategies import Misuse
from playcall.strategies.agent import Agent
from playcall.strategies.config import MissingKey, read_arms
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price

LOCAL = "http://127.0.0.1:8/v1"


def read(folder: Path, text: str, name: str = "arms.yaml", **options: Any) -> Any:
    (folder / name).write_text(text)
    return read_arms(folder / name, **options)


def test_an_arm_has_what_its_entry_and_the_defaults_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-of-mine")
    arms = read(
        tmp_path,
        """
        defaults: {params: {max_tokens: 512, temperature: 1}, concurrency: 9}
        arms:
          mini:
            base_url: https://api.example.com/v1
            api_key_env: MY_KEY
            model: gpt-mini
            params: {temperature: 0.7}
            price: {input: 0.15, output: 6e-1, cached: 0.075}
            headers: {X-Team: "${MY_KEY}-x"}
            requests_per_minute: 60
            confidence: mean_logprob
            losers: drain
            clock: provider
          local: {base_url: http://localhost:1/v1, model: m, price: free, concurrency: 1}
        """,
    )
    mini, local = arms["mini"], arms["local"]
    assert dict(mini.params) == {"max_tokens": 512, "temperature": 0.7}
    assert (mini.concurrency, local.concurrency, local.price) == (9, 1, "free")
    assert mini.price == Price(0.15, 0.60, 0.075)
    assert (mini.requests_per_minute, mini.confidence, mini.losers, mini.clock) == (
        60,
        "mean_logprob",
        "drain",
        "provider",
    )
    assert mini.headers["X-Team"] == "sk-secret-of-mine-x"
    assert isinstance(mini.endpoint, OpenAICompatible)
    assert mini.endpoint.name == "api.example.com"
    assert "secret" not in repr(mini.endpoint)


@pytest.mark.parametrize("kind", ["yaml", "json", "toml"])
def test_arms_are_yaml_json_or_toml(tmp_path: Path, kind: str) -> None:
    text = {
        "yaml": f"arms: {{a: {{model: m, base_url: '{LOCAL}'}}}}",
        "json": json.dumps({"arms": {"a": {"model": "m", "base_url": LOCAL}}}),
        "toml": f"[arms.a]\nmodel = 'm'\nbase_url = '{LOCAL}'",
    }
    assert read(tmp_path, text[kind], f"arms.{kind}")["a"].model == "m"


WRONG = {
    "model: m, tires: 4": "arm 'a': tires: unknown; did you mean tries?",
    "modle: m": "arm 'a': modle: unknown; did you mean model?",
    "tries: 3": "arm 'a': model: Field required.",
    "model: m, tries: many": "arm 'a': tries: Input should be a valid integer",
    "model: m, tries: 0": "arm 'a': .*tries=0",
    "model: m, clock: theirs": "arm 'a': clock: ",
    "model: m, confidence: high": "arm 'a': confidence: ",
    "model: m, price: cheap": "arm 'a': price: write ",
    "model: m, price: {input: 1}": "arm 'a': price: give input and output",
    "model: m, price: {input: 1, output: -1}": "arm 'a': price: .*output=-1",
    "model: m, price: {input: 1, ouput: 1}": "arm 'a': price: .*ouput",
    "model: m, provider: mine": "arm 'a': provider: 'mine'; write one of openai, litellm, agent, scripted",
    "model: m, api_key: sk-secret": "arm 'a': api_key: a file holds no keys: write api_key_env",
    "model: m, api_key_env: sk-secret": "arm 'a': api_key_env: write the name of a variable",
    "model: m, params: {api_key: sk-secret}": "arm 'a': api_key: a file holds no keys",
    "model: m, headers: {Authorization: sk-secret}": "arm 'a': Authorization: a file holds no keys",
    "model: m, base_url: 'ftp://localhost/v1'": "arm 'a': base_url",
    "model: m, base_url: 'http://[::1/v1'": "arm 'a': base_url: write http",
    "model: m, base_url: 'http://localhost:99999/v1'": "arm 'a': base_url: write http.*port",
    "model: m, base_url: 'http://localhost:abc/v1'": "arm 'a': base_url: write http.*port",
    "model: m, base_url: 'http://localhost/v1/chat/completions/'": "arm 'a': base_url: leave out /chat/completions",
    "model: m, proxy: 'localhost:3128'": "arm 'a': proxy: write http://host",
    "model: m, verify: nowhere.pem": "arm 'a': verify: No such file",
    "model: m, cert: [nowhere.pem, nowhere.key]": "arm 'a': cert: No such file",
    'model: m, headers: {X: "a\\r\\nsecret: 1"}': "arm 'a': headers: 'X': a header has",
    'model: m, headers: {"X\\n": a}': "arm 'a': headers: .*a header has",
    "model: m, params: {max_tokens: many}": "arm 'a': params.max_tokens: 'many'; write a whole number",
    "model: m, params: {max_completion_tokens: 0}": "arm 'a': params.max_completion_tokens: 0; write",
    "model: m, params: {n: true}": "arm 'a': params.n: True; write",
    "model: m, params: {messages: []}": "arm 'a': params.messages: .*instead of every task",
    "model: m, provider: [x]": "arm 'a': provider: \\['x'\\]; write one of",
    "model: m, provider: agent": "arm 'a': function: Field required",
    "provider: agent, function: 'os:nope'": "arm 'a': function: 'os:nope' cannot be imported",
    "provider: agent, function: nope": "arm 'a': function: 'nope'; write module:function",
    "provider: agent, function: 'os:getcwd', models: {solver: big}": "arm 'a': models.solver: 'big' is no arm",
    "provider: scripted, table: t.csv": "arm 'a': recorded arms need a reader of tables",
}


@pytest.mark.parametrize("entry", WRONG)
def test_what_is_wrong_is_said_with_file_arm_and_field_and_without_keys(tmp_path: Path, entry: str) -> None:
    with pytest.raises(Misuse, match=WRONG[entry]) as raised:
        read(tmp_path, f"defaults: {{base_url: '{LOCAL}'}}\narms: {{a: {{{entry}}}}}")
    assert str(raised.value).startswith(str(tmp_path / "arms.yaml"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("arms: {}", "write arms:"),
        ("- a", "write arms:"),
        ("arms: {a: {model: m}}\nprises: {}", "'prises' is unknown"),
        ("arms: {a: [m]}", "arm 'a': .*mapping"),
        ("arms: {a: {model: m}, a: {model: n}}", "'a' is there twice"),
        ("arms: {a: {model: m, model: n}}", "'model' is there twice"),
        ("arms: {1: {model: m}, '1': {model: n}}", "'1' is there twice"),
        ("arms: {a: ", "is not yaml"),
        ("defaults: {tires: 3}\narms: {a: {model: m}}", "tires: unknown; did you mean tries?"),
        ("prices: {m: {input: 1}}\narms: {a: {model: m}}", "prices: m: give input and output"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        read(tmp_path, text)


def test_a_key_that_is_not_there_is_refused_by_arm_and_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingKey, match=r"arm 'a': .*set the environment variable OPENAI_API_KEY"):
        read(tmp_path, "arms: {a: {model: m}}")
    with pytest.raises(MissingKey, match=r"arm 'a': .*set the environment variable NOT_THERE"):
        read(tmp_path, "arms: {a: {model: m, provider: litellm, api_key_env: NOT_THERE}}")
    with pytest.raises(MissingKey, match=r"arm 'a': api_key_env: models.example.com needs a key"):
        read(tmp_path, "arms: {a: {model: m, base_url: 'https://models.example.com/v1'}}")
    with pytest.raises(MissingKey, match=r"arm 'a': X-Key: set the environment variable NOT_THERE"):
        read(tmp_path, f"arms: {{a: {{model: m, base_url: '{LOCAL}', headers: {{X-Key: '${{NOT_THERE}}'}}}}}}")
    open_ = "arms: {a: {model: m, base_url: 'https://models.example.com/v1', api_key_env: null}}"
    assert read(tmp_path, open_)["a"].endpoint.tenant == ""
    for host in ("localhost", "127.0.0.1", "[::1]", "10.1.2.3", "192.168.0.7", "vllm", "gpu.internal"):
        assert read(tmp_path, f"arms: {{a: {{model: m, base_url: 'http://{host}:8000/v1'}}}}")


def test_prices_come_from_the_arm_then_the_users_file_then_the_section(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("m: {input: 7, output: 8}")
    text = f"""
    defaults: {{base_url: '{LOCAL}'}}
    prices: {{m: {{input: 1, output: 2}}, n: {{input: 3, output: 4}}, by-name: {{call: 0.5}}}}
    arms:
      own: {{model: m, price: {{input: 5, output: 6}}}}
      m: {{model: m}}
      n: {{model: n}}
      by-name: {{model: m}}
      unknown: {{model: no-such-model}}
    """
    prices = {name: arm.price for name, arm in read(tmp_path, text, prices=tmp_path / "p.yaml").items()}
    assert prices == {
        "own": Price(5, 6),
        "m": Price(7, 8),
        "n": Price(3, 4),
        "by-name": Price(call=0.5),
        "unknown": None,
    }
    named = text.replace(text[text.index("prices:") : text.index("arms:")], "prices: p.yaml\n    ")
    assert read(tmp_path, named)["m"].price == Price(7, 8)


def test_agents_are_functions_of_the_working_folder_and_bring_their_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agents.py").write_text("def solve(task, models):\n    return task\n")
    text = f"""
    defaults: {{base_url: '{LOCAL}', params: {{max_tokens: 5}}}}
    arms:
      mini: {{model: m}}
      other: {{model: m, api_key_env: NOT_THERE}}
      solve: {{provider: agent, function: "my_agents:solve", models: {{solver: mini}}}}
    """
    arms = read(tmp_path, text, only=["solve"])
    assert list(arms) == ["mini", "solve"]
    assert isinstance(arms["solve"].endpoint, Agent)
    assert (arms["solve"].price, arms["solve"].model) == ("calls", "my_agents:solve")
    with pytest.raises(Misuse, match="there is no arm 'nope'"):
        read(tmp_path, text, only=["nope"])


def test_a_name_that_is_there_twice_is_refused_in_json_too(tmp_path: Path) -> None:
    (tmp_path / "arms.json").write_text('{"arms": {"a": {"model": "x"}, "a": {"model": "y"}}}')
    with pytest.raises(Misuse, match="'a' is there twice"):
        read_arms(tmp_path / "arms.json")


def test_names_that_yaml_takes_for_numbers_and_truths_are_texts_as_they_are_written(tmp_path: Path) -> None:
    text = f"""
    arms:
      no: &no {{model: m, base_url: '{LOCAL}', params: {{logit_bias: {{50256: -100}}}}}}
      1.50: {{<<: *no, model: n}}
    """
    arms = read(tmp_path, text)
    assert {name: (arm.model, dict(arm.params)) for name, arm in arms.items()} == {
        "no": ("m", {"logit_bias": {"50256": -100}}),
        "1.50": ("n", {"logit_bias": {"50256": -100}}),
    }
