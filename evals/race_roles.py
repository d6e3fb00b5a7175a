"""What a race is between: an agent's roles and their models, and the user's function that builds it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from playcall.strategies import Misuse, PlaycallError
from playcall.strategies.sources import is_async, load_function, name_of, read_document

Agent = Callable[[object], object]
Build = Callable[[Mapping[str, str]], Agent]
EXAMPLE = """write such a function:

def build(models):  # such as {"planner": "gpt-4o", "solver": "gpt-4o-mini"}
    def agent(task):  # or async def
        ...  # ask models["planner"], or simply the model "planner"
        return "the answer"
    return agent"""
ROLES = "write planner: [gpt-4o, gpt-4o-mini]"


def arms_of(roles: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Every combination of models by role, by its name `planner=a + solver=b`, in the order of the models."""
    checked = _checked("roles", roles)
    made = [dict(zip(checked, models)) for models in product(*checked.values())]
    return {" + ".join(f"{role}={model}" for role, model in of.items()): of for of in made}


def read_roles(path: str | Path) -> dict[str, list[str]]:
    """The models of each role from a .yaml, .json or .toml file: {planner: [gpt-a, claude-b], solver: [...]}. Raises
    Misuse that names the file and the entry."""
    return _checked(str(path), read_document(Path(path), "roles"))


def _checked(where: str, told: object) -> dict[str, list[str]]:
    if not isinstance(told, Mapping) or not told:
        raise Misuse(f"{where}: {ROLES} for each role; it is {told!r}.")
    found = dict[str, list[str]]()
    for role, models in told.items():
        at, many = f"{where}: {role}", [models] if isinstance(models, str) else models
        if not isinstance(role, str) or not role.strip() or "=" in role or " + " in role:
            raise Misuse(f"{at}: a role's name is a text without = and ' + '.")
        if not isinstance(many, list | tuple) or not many:
            raise Misuse(f"{at}: {models!r}; {ROLES}, with one model or more.")
        for model in many:
            if not isinstance(model, str) or not model.strip() or " + " in model:
                raise Misuse(f"{at}: {model!r} is no model's name; {ROLES}.")
        if twice := [model for model, count in Counter(many).items() if count > 1]:
            raise Misuse(f"{at}: {twice[0]!r} is there twice.")
        found[role] = list(many)
    return found


def load_build(target: str) -> Build:
    """A user's function by `agent.py:build`, or `module:build`. Raises Misuse that says how it must look."""
    path, _, name = target.partition(".py:")
    if not name:
        return load_function(target, "agent")
    file = Path(f"{path}.py").absolute()
    try:
        module = file.stem if file.stem not in sys.modules else f"{file.stem}_"
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = made = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(file.parent))  # what stands beside it
        spec.loader.exec_module(made)
        found = getattr(made, name)
    except PlaycallError:
        raise
    except Exception as error:
        raise Misuse(f"agent {target!r} cannot be loaded: {error!r}. Write file.py:name of a function.") from error
    if not callable(found):
        raise Misuse(f"agent {target!r} is no function but {type(found).__name__}; {EXAMPLE}")
    return found


def built(build: Build, models: Mapping[str, str]) -> Agent:
    """The agent of some models. Raises Misuse that says how `build` must look."""
    name = name_of(build)
    if not callable(build) or is_async(build) or not _takes_one(build):
        raise Misuse(f"agent {name} is no plain function of the models by role; {EXAMPLE}")
    try:
        agent: Any = build(dict(models))
    except PlaycallError:
        raise
    except Exception as error:
        raise Misuse(f"agent {name} raised {error!r} when it was given {dict(models)}; {EXAMPLE}") from error
    if not callable(agent) or not _takes_one(agent):
        say = "is no function of a task; return one, such as lambda task: graph.invoke(task)"
        raise Misuse(f"agent {name} returned {type(agent).__name__}, which {say}; or {EXAMPLE}")
    return agent


def code_of(function: object) -> str:
    """A digest of the file that a function or an object's class is written in; empty where it is in none."""
    found: Any = inspect.unwrap(getattr(function, "func", function))  # type: ignore[arg-type]
    found = found if inspect.isroutine(found) or inspect.isclass(found) else type(found)
    try:
        path = inspect.getsourcefile(found)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ""
    except (OSError, TypeError):
        return ""


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True
