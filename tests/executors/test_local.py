"""Processes of this machine: what they send, and every way to end; pieces of work seen to their end."""

import threading
import time
from functools import partial

import pytest
import works

from pipeline.contract.errors import PipelineError, RunError
from pipeline.executors.base import Ended
from pipeline.executors.each import run_each
from pipeline.executors.local import LocalExecutor


def heard(executor, seats):
    """Everything that comes, by seat, until all have ended."""
    found = {seat: [] for seat in seats}
    while any(not messages or not isinstance(messages[-1], Ended) for messages in found.values()):
        seat, message = executor.receive()
        found[seat].append(message)
    return found


def test_messages_keep_their_order_and_the_end_says_how(capfd):
    executor = LocalExecutor([{}])
    for seat, work in enumerate([partial(works.say, ["a", "b", "c"]), works.refuse, works.break_down, works.start_a_process]):
        executor.start(seat, work)
    found = heard(executor, range(4))
    assert found[0] == ["a", "b", "c", Ended()]
    (begun, ended) = found[1]
    assert begun == "begun" and isinstance(ended.problem, RunError) and str(ended.problem) == "mend this"
    assert found[2] == [Ended("ZeroDivisionError: at once")] and "in break_down" in capfd.readouterr().err
    assert found[3] == ["42", Ended()]


def test_told_to_end_they_drop_what_they_have_in_hand(tmp_path):
    executor = LocalExecutor([{}])
    for seat in range(2):
        executor.start(seat, partial(works.work_for_ever, tmp_path))
    numbers = {executor.receive()[1] for _ in range(2)}
    executor.end()
    assert {int(path.name.removeprefix("dropped-")) for path in tmp_path.iterdir()} == numbers
    executor.end()  # nobody is left


def test_told_to_end_where_nothing_can_be_raised_it_ends_all_the_same(tmp_path, capfd):
    """As a library's `__del__` swallows it: without a second telling the process would work to its end."""
    executor = LocalExecutor([{}])
    executor.start(0, partial(works.be_deaf_first, tmp_path))
    assert executor.receive() == (0, "deaf")
    started = time.monotonic()
    threading.Timer(0.3, (tmp_path / "told").touch).start()
    executor.end()
    assert time.monotonic() - started < 20
    assert "Traceback" not in capfd.readouterr().err


def test_more_signals_do_not_disturb_the_drop(tmp_path):
    executor = LocalExecutor([{}])
    executor.start(0, partial(works.drop_slowly, tmp_path))
    assert executor.receive() == (0, "begun")
    child = executor._children[0]
    for _ in range(3):
        child.stop()
        time.sleep(0.1)
    executor.end()
    assert (tmp_path / "dropped").exists()


def test_what_dies_is_started_again(tmp_path):
    said = []
    run_each(LocalExecutor([{}]), {"one": partial(works.die_until, tmp_path, 2), "two": partial(works.say, [])}, said.append)
    assert (tmp_path / "done").exists()
    assert said == ["one died (exit code -9); it is started again"] * 2


def test_three_deaths_or_an_error_stop_one_and_not_the_others(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    pieces = {
        "dying": partial(works.die_until, tmp_path / "a", 99),
        "refused": works.refuse,
        "good": partial(works.die_until, tmp_path / "b", 2),
    }
    with pytest.raises(PipelineError, match=r"(mend this|dying: died 3 times, the last of exit code -9; .*) \(and 1 more, above\)"):
        run_each(LocalExecutor([{}]), pieces, lambda line: None)
    assert len(list((tmp_path / "a").iterdir())) == 3 and (tmp_path / "b/done").exists()


def test_only_so_many_are_at_work_at_once_and_each_gets_its_turn(tmp_path):
    pieces = {f"piece {number}": partial(works.count_neighbours, tmp_path) for number in range(5)}
    run_each(LocalExecutor([{}]), pieces, lambda line: None, at_once=2)
    seen = [int(file.read_text()) for file in tmp_path.glob("saw-*")]
    assert len(seen) == 5 and max(seen) == 2
