"""The drills in miniature; in full by `make drill`."""

import drill_corruption
import drill_kills


def test_fifty_corruptions(tmp_path):
    tried = drill_corruption.Drill(tmp_path, seed=1).run(50)
    assert sum(tried.by_kind.values()) == 50 and len(tried.by_file) >= 8


def test_five_kills_and_four_workers(tmp_path):
    drill = drill_kills.Drill(tmp_path, seed=1, limit=40)
    assert sum(drill.run(3, 1).values()) == 3
    assert sum(drill.run(2, 4).values()) == 2
