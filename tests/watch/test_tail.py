"""Each line once, a torn one when it is whole, and a file that became another one from its start."""

import json

import pytest
from watched_runs import begin, train_record

from pipeline.watch.tail import Tail


class Reader:
    """Steps as a tail gives them, forgotten where it starts again."""

    def __init__(self, path):
        self.tail, self.steps, self.restarts = Tail(path), [], 0

    def look(self):
        """How many lines this look read."""
        before = len(self.steps)
        self.tail.follow(lambda line: self.steps.append(json.loads(line)["step"]), self.restart)
        return len(self.steps) - (0 if not self.steps or before > len(self.steps) else before)

    def restart(self):
        self.steps, self.restarts = [], self.restarts + 1


@pytest.fixture
def folder(tmp_path):
    return begin(tmp_path / "run")


def write(folder, first, last, **more):
    for step in range(first, last + 1):
        folder.append_metrics(train_record(step, **more))


def kept(folder, last):
    folder.keep_metrics([record for record in folder.metrics() if record["step"] <= last])


def test_each_line_is_read_once(folder):
    reader = Reader(folder.metrics_path)
    assert reader.look() == 0
    write(folder, 1, 30)
    assert reader.look() == 30
    write(folder, 31, 32)
    assert 0 < reader.tail.unread() < folder.metrics_path.stat().st_size / 10
    assert reader.look() == 2 and reader.look() == 0 and reader.tail.unread() == 0
    assert reader.steps == list(range(1, 33)) and reader.restarts == 0


def test_a_torn_line_waits_until_it_is_whole(folder):
    reader = Reader(folder.metrics_path)
    write(folder, 1, 1)
    line = json.dumps(train_record(2)) + "\n"
    with folder.metrics_path.open("a") as lines:
        lines.write(line[:20])
        lines.flush()
        assert reader.look() == 1 and reader.look() == 0
        lines.write(line[20:])
    assert reader.look() == 1 and reader.steps == [1, 2]


def test_a_resumed_run_takes_back_what_it_does_again(folder):
    reader = Reader(folder.metrics_path)
    write(folder, 1, 30)
    reader.look()
    kept(folder, 20)
    reader.look()
    assert reader.steps == list(range(1, 21)) and reader.restarts == 1


def test_so_it_does_when_it_has_overtaken_the_reader_meanwhile(folder):
    reader = Reader(folder.metrics_path)
    write(folder, 1, 30)
    reader.look()
    kept(folder, 20)
    write(folder, 21, 60, seconds=0.25)  # other timings: other bytes where the reader stands
    reader.look()
    assert reader.steps == list(range(1, 61)) and reader.restarts == 1


def test_a_rewritten_file_that_holds_all_that_was_read_is_read_on(folder):
    reader = Reader(folder.metrics_path)
    write(folder, 1, 30)
    reader.look()
    kept(folder, 30)
    write(folder, 31, 31)
    assert reader.look() == 1 and reader.restarts == 0


def test_a_run_that_was_set_aside_is_forgotten(folder):
    reader = Reader(folder.metrics_path)
    write(folder, 1, 3)
    reader.look()
    folder.path.rename(folder.path.with_name("aside"))
    reader.look()
    assert reader.steps == [] and reader.restarts == 1
    begin(folder.path)
    write(folder, 1, 2)
    assert reader.look() == 2
