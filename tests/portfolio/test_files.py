"""Files are written whole, and nothing else is written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from playcall.portfolio import write_whole
from playcall.strategies import PlaycallError


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
