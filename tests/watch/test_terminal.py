"""What stands on a terminal: whole at any width, told without colours, and gone with Ctrl-C."""

import io
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from watched_runs import STEPS

from pipeline.watch.terminal import drawn, most_urgent, plain, show_once
from pipeline.watch.words import duration, notes, rows

ROOT = Path(__file__).parents[2]


def lines_at(picture, width, **options):
    console = Console(width=width, height=50, force_terminal=True, highlight=False, markup=False, record=True, file=io.StringIO())
    console.print(drawn(picture, width, **options))
    return console.export_text(styles=False).splitlines()


@pytest.mark.parametrize("width", [60, 80, 132, 200])
def test_every_run_and_value_is_there_at_any_width(watch, width):
    text = "\n".join(lines_at(watch.look(), width))
    assert all(len(line) <= width for line in text.splitlines())
    for shown in ("▶ running", "✓ done", "✗ failed", "· waiting", "2/3", f"{STEPS + 5}/120", "9.0000", "25%", "1 spike", "200"):
        assert shown in text, shown
    assert width == 60 or "4 runs: 1 running, 1 failed, 1 waiting, 1 done, 85 of 280 steps (30%)" in text


def test_plain_columns_line_up_and_carry_the_same_cells(watch):
    picture = watch.look()
    text = plain(picture)
    table = [line for line in text if "last record" in line or line.startswith(("going", "done", "failed", "absent"))][:5]
    assert len({line.index(word) for line, word in zip(table, ("state", "▶", "✓", "✗", "·"))}) == 1
    for row, line in zip(rows(picture), table[1:]):
        assert all(cell in line for cell in row.cells)


def test_notes_say_why_and_steer_no_terminal(watch):
    said = notes(watch.look())
    assert said[0].startswith("going: running: step 45: the loss jumped to 99.0000 (mean before 3.0000)")
    assert said[1] == "failed: failed: <script>alert(1)</script>  [2J went wrong"
    assert "\x1b" not in "\n".join(plain(watch.look()))


def test_nan_is_written_out(watch):
    picture = watch.look()
    broken = replace(picture, runs=tuple(replace(run, loss=math.nan, kl=math.inf) for run in picture.runs))
    assert "NaN" in plain(broken)[3] and "infinite" in plain(broken)[3]


def test_what_has_no_room_is_said_and_what_matters_is_shown(watch):
    runs = watch.look().runs
    assert [run.state for run in most_urgent(runs, 2)] == ["running", "failed"]
    assert [run.state for run in most_urgent(runs[::-1], 3)] == ["waiting", "failed", "running"]
    low = "\n".join(lines_at(watch.look(), 200, height=14))
    assert "2 more runs" in low and "▶ running" in low and "✓ done" not in low


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (math.nan, ""), (9.9, "9 s"), (61, "1 min 1 s"), (7325, "2 h 2 min"), (200_000, "2 d 7 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_once_on_a_terminal_is_drawn(watch, tmp_path):
    with (tmp_path / "out").open("w+") as file:
        show_once(watch.look(), Console(file=file, force_terminal=True, width=100))
        file.seek(0)
        assert "\x1b[" in file.read()


def read_until(terminal, wanted, seconds=60):
    """What a program writes to its terminal, until what is `wanted`, a regular expression, stands there."""
    seen, deadline = "", time.monotonic() + seconds
    while not re.search(wanted, seen, re.DOTALL):
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # the program has ended
                assert re.search(wanted, seen, re.DOTALL), seen[-2000:]
    return seen


def test_live_until_control_c_and_the_last_picture_stays(tmp_path):
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
    command = [sys.executable, "-m", "pipeline", "watch", "demo-2x2", "--every", "0.2"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        screen = read_until(ours, "Ctrl-C ends the view")
        assert "\x1b[?1049h" in screen and "nothing is there yet; 'pipeline run demo-2x2'" in screen
        process.send_signal(signal.SIGINT)
        after = read_until(ours, r"\x1b\[\?1049l.*waiting")  # the last picture may come with the leaving of the view, or after it
        assert process.wait(timeout=30) == 0 and "Traceback" not in after and "error" not in after
    os.close(ours)
    assert not list(tmp_path.iterdir())
