"""The drills in miniature; in full by `make drill`."""

import json

import drill_corruption
import drill_kills
import drill_record


def test_fifty_corruptions(tmp_path):
    drill = drill_corruption.Drill(tmp_path, seed=1)
    drill.run(50)
    assert drill.tried.total() == 50
    assert len({kind for kind, _, _ in drill.tried}) >= 6 and len({file for _, file, _ in drill.tried}) >= 8
    drill_record.write_record(tmp_path / "record.json", {"seed": 1}, drill.tried)
    record = json.loads((tmp_path / "record.json").read_text())
    assert sum(count for files in record["tried"].values() for outcomes in files.values() for count in outcomes.values()) == 50
    assert str(tmp_path) not in json.dumps(record)


def test_five_kills(tmp_path):
    drill = drill_kills.Drill(tmp_path, seed=1, limit=40)
    drill.run(2, 1)
    drill.run(3, 4)
    assert drill.tried.total() == 5
