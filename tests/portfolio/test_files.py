"""Files are read and written whole, and nothing else is written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from playcall.portfolio import write_whole
from playcall.portfolio.files import read_json
from playcall.strategies import Misuse, PlaycallError


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, tmp_path, Path("")):
        with pytest.raises(PlaycallError, match=r"no regular file\. Name a file"):
            write_whole(path, "x")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    link, file = tmp_path / "link", tmp_path / "to" / "file"
    file.write_text("old")
    link.symlink_to(file)
    write_whole(link, "new")
    assert (link.is_symlink(), file.read_text(), os.listdir(file.parent)) == (True, "new", ["file"])


@pytest.mark.parametrize("text", ["", "[" * 100_000, "\x00"])
def test_what_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(Misuse, match=r"p\.json cannot be read as JSON"):
        read_json(tmp_path / "p.json")
