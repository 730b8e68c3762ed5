"""What a run shows in a terminal: cells with their seconds, and streams that are drawn anew."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from workbench.notebook.source import Cell
from workbench.runner.progress import Progress

CELL = Cell(number=2, line=1, language="python", source="x = 1")
SHOW_CURSOR = "\x1b[?25h"


def progress_on(**console):
    written = io.StringIO()
    return Progress(Console(file=written, width=60, **console), 3), written


@pytest.fixture
def terminal():
    return progress_on(force_terminal=True, height=12)


def test_a_stream_is_drawn_anew_below_the_cells_and_its_last_state_stays(terminal):
    progress, written = terminal
    progress.start(CELL)
    progress.show_stream("a", "stream a: running\nid\n--\n1")
    progress.show_stream("a", "stream a: running\nid\n--\n2")
    progress.end(success=True)
    progress.show_stream("a", "stream a: stopped\nid\n--\n3")
    progress.close()
    live, last = written.getvalue().rsplit("stream a: stopped", 1)
    assert "stream a: running" in live
    assert "✓" in live
    assert "[2/3] x = 1" in live
    assert "3" in last
    assert last.endswith(SHOW_CURSOR)
    progress.close()


def test_a_cell_without_streams_leaves_its_line_alone(terminal):
    progress, written = terminal
    progress.start(CELL)
    progress.end(success=False)
    assert written.getvalue().rpartition(SHOW_CURSOR)[2].count("\n") == 1
    assert "✗" in written.getvalue().rpartition(SHOW_CURSOR)[2]


def test_streams_share_the_terminal_and_obey_no_value(terminal):
    progress, written = terminal
    long = "\n".join(f"line {number} " + "x" * 100 for number in range(50))
    progress.show_stream("a", f"\x1b[31mred\n{long}")
    progress.show_stream("b", long)
    progress.close()
    last = written.getvalue().rpartition("[31mred")[2]
    assert "\x1b[31m" not in written.getvalue()
    assert last.count("line 2 ") == 2
    assert "line 3 " in last
    assert "line 4 " not in last
    assert "x" * 52 + "…" in last
    assert "x" * 53 not in last


def test_what_is_no_terminal_shows_no_stream():
    progress, written = progress_on()
    progress.start(CELL)
    progress.show_stream("a", "stream a: running")
    progress.end(success=True)
    progress.close()
    assert "stream a" not in written.getvalue()
