"""The package as a whole: which way imports run, what they cost, what a wheel holds, what the lock pins."""

import ast
import doctest
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("strategies", "calibration", "portfolio", "evals")  # each may import itself and those before it
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]
MODULES = ["playcall." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in NAMES]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

every_source = pytest.mark.parametrize("path", SOURCES, ids=NAMES)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Absolute dotted names that a module of `package` imports, relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def import_faults(source: str, folder: str) -> list[str]:
    """What is wrong with the imports of a module in `folder`."""
    allowed = FOLDERS[: FOLDERS.index(folder) + 1]
    faults = []
    for name in imported(ast.parse(source), f"playcall.{folder}"):
        top, *rest = name.split(".")
        if top in FOLDERS:
            faults.append(f"`{name}`: write playcall.{name}")
        elif top == "playcall" and (not rest or rest[0] not in allowed):
            faults.append(f"`{name}`: {folder} may import {', '.join(allowed)} only")
    return faults


@every_source
def test_imports_run_one_way(path: Path) -> None:
    assert import_faults(path.read_text("utf-8"), path.relative_to(ROOT).parts[0]) == []


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("strategies", "from playcall.calibration import Platt"),
        ("strategies", "def f():\n    import playcall.evals.cli"),
        ("calibration", "from playcall import portfolio"),
        ("calibration", "from ..portfolio import fit"),
        ("portfolio", "from .. import evals"),
        ("portfolio", "if TYPE_CHECKING:\n    from playcall.evals.cli import main"),
        ("evals", "import strategies"),
        ("evals", "from strategies.panel import Panel"),
        ("evals", "import playcall"),
    ],
)
def test_a_planted_back_arrow_is_caught(folder: str, source: str) -> None:
    assert len(import_faults(source, folder)) == 1


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("strategies", "import numpy as np\nfrom playcall.strategies.panel import Panel\nfrom .rules import Best"),
        ("portfolio", "from playcall.calibration import Platt\nfrom ..strategies import Ask"),
        ("evals", "import playcall.portfolio\nimport openai.evals"),
    ],
)
def test_a_forward_import_is_allowed(folder: str, source: str) -> None:
    assert import_faults(source, folder) == []


def test_importing_strategies_loads_nothing_heavy() -> None:
    code = "import sys, playcall.strategies; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    heavy = {"litellm", "sklearn", "pandas", "pyarrow", "scipy", "plotly"}
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_listed_mapped_typed_and_flat(folder: str) -> None:
    tool = PYPROJECT["tool"]["setuptools"]
    assert f"playcall.{folder}" in tool["packages"]
    assert tool["package-dir"][f"playcall.{folder}"] == folder
    assert (ROOT / folder / "py.typed").is_file()
    assert (ROOT / ".typing" / "playcall" / folder).resolve() == ROOT / folder
    assert {path.parent for path in SOURCES if folder in path.parts[-2:]} == {ROOT / folder}


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_doctests_pass(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_a_built_wheel_holds_every_folder_and_its_data(tmp_path: Path) -> None:
    """The wheel is built from the source distribution, so that one is complete too."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = [path for kind in ("*.parquet", "*.md", "*.html") for path in (ROOT / "evals" / "data").glob(kind)]
    files = [*SOURCES, *data, *(ROOT / folder / "py.typed" for folder in FOLDERS)]
    assert held == {f"playcall/{path.relative_to(ROOT).as_posix()}" for path in files}


def test_the_lock_pins_and_hashes_every_requirement() -> None:
    text = (ROOT / "requirements.lock").read_text("utf-8")
    assert "://" not in text
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    entry = re.compile(r"([a-z0-9-]+)==([^\s;]+)( ; [^#]+?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*")
    pins = [entry.fullmatch(line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    pinned = {(pin[1], pin[2]) for pin in pins if pin}
    assert ("litellm", "1.107.0") not in pinned  # a release to stay away from
    required = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    assert {re.split(r"[\s<>=!~;\[]", line)[0].lower() for line in required} <= {name for name, _ in pinned}


@every_source
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 400


def test_the_package_stays_small() -> None:
    """3,500 lines for strategies, replay and reports, 7,000 for all that a live run owes, 6,500 for the learner: its
    estimators, guarantees, studies, and the benchmark with its baselines, 6,000 for agents: half for tracking, half for
    races."""
    assert sum(len(path.read_text("utf-8").splitlines()) for path in SOURCES) <= 23_000


def code_faults(source: str) -> list[str]:
    """Pickle in any form, and calls of eval or exec: loading a file of ours must run no code."""
    tree = ast.parse(source)
    pickles = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    faults = [name for name in imported(tree, "playcall.any") if name.split(".")[0] in pickles]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).removeprefix("builtins.")
            pickled = called.endswith("_pickle") or any(word.arg == "allow_pickle" for word in node.keywords)
            if called in {"eval", "exec"} or pickled:
                faults.append(called)
    return faults


@every_source
def test_no_source_runs_code_from_data(path: Path) -> None:
    assert code_faults(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval('1')", "np.load(f, allow_pickle=True)", "pd.read_pickle(f)"],
)
def test_planted_code_from_data_is_caught(source: str) -> None:
    assert len(code_faults(source)) == 1


def test_every_request_of_users_that_concerns_live_runs_has_a_test() -> None:
    """Tests carry the numbers of the requests that they hold: PEERS 12."""
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    found = {
        int(n)
        for text in texts
        for numbers in re.findall(r"PEERS ([\d, ]+)", text)
        for n in numbers.split(",")
        if n.strip()
    }
    assert {*range(1, 28), *range(30, 41), *range(43, 49)} - found == set()
