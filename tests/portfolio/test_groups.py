"""Tasks that are alike are held out together."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.portfolio.made import made

from playcall.evals.table import TableError, read_table
from playcall.portfolio import Play, cross_fit
from playcall.strategies import Ask, Misuse, Recording, Strategy


def test_a_group_never_straddles_a_fold() -> None:
    recording = made({"a": 0.6, "b": 0.7}, tasks=60)
    recording = replace(recording, groups=tuple(f"g{i // 7}" for i in range(60)))
    seen = []

    def chooser(swept: Sequence[Play], known: Recording) -> Strategy:
        seen.append(set(known.groups))
        return Ask("a")

    held = cross_fit(recording, {"a": chooser}, folds=4)["a"]
    everything = set(recording.groups)
    left_out = [everything - groups for groups in seen]
    assert set.union(*left_out) == everything
    assert sum(len(g) for g in left_out) == len(everything)  # each group is whole in training, or whole in its fold
    assert held.quality.tolist() == recording["a"].quality[:, 0].tolist()


def test_near_duplicates_inflate_figures_unless_they_are_grouped() -> None:
    """Confidences that tell nothing but name the task: a learner may know a copy of the task it is graded on."""
    once = made({"a": 0.5, "b": 0.5}, tasks=40, seed=3)
    copies = np.repeat(np.arange(40), 5)
    recording = once.take(copies)
    recording = replace(recording, items=tuple(f"t{i}" for i in range(200)), groups=tuple(f"g{i}" for i in copies))
    parts = []

    def chooser(swept: Sequence[Play], known: Recording) -> Strategy:
        parts.append(known)
        return Ask("a")

    cross_fit(recording, {"a": chooser}, folds=5)
    assert all(len(set(known.groups)) == 32 and len(known) == 160 for known in parts)


def test_one_group_cannot_be_held_out() -> None:
    recording = replace(made({"a": 0.6, "b": 0.7}, tasks=20), groups=("g",) * 20)
    with pytest.raises(Misuse, match="2 groups"):
        cross_fit(recording, {"a": lambda swept, known: Ask("a")})


def test_groups_come_from_a_column(tmp_path: Path) -> None:
    rows = [f"{i},{arm},1,doc{i // 2}" for i in range(4) for arm in "ab"]
    (file := tmp_path / "t.csv").write_text("item,arm,score,document\n" + "\n".join(rows) + "\n")
    assert read_table(file, group="document").groups == ("doc0", "doc0", "doc1", "doc1")
    assert read_table(file, group="document").take(np.array([3, 0])).groups == ("doc1", "doc0")


def test_an_item_in_two_groups_is_refused_with_its_row(tmp_path: Path) -> None:
    (file := tmp_path / "t.csv").write_text("item,arm,score,doc\n1,a,1,x\n2,a,1,x\n1,b,1,x\n2,b,0,y\n")
    with pytest.raises(TableError, match=r"item '2' is in two groups"):
        read_table(file, group="doc")
