"""The page on capacity says what its command prints, but for what a machine measures."""

from pathlib import Path

from benchmarks.capacity import bytes_a_token, print_bytes, print_device

PAGE = Path(__file__).parents[1] / "stage1_teacher" / "CAPACITY.md"


def test_the_pages_tables_are_the_commands(capsys):
    print_device(compute=0.45, memory=0.7, price=2.5)
    print_bytes()
    printed, page = capsys.readouterr().out.splitlines(), PAGE.read_text(encoding="utf-8").splitlines()
    assert len(printed) > 10
    assert [line for line in printed if line not in page] == []


def test_bytes_a_token_are_read_from_the_readme():
    found = bytes_a_token()
    assert list(found) == ["k=64", "k=128", "c=1/128", "c=1/64"]
    assert found["k=128"] > found["k=64"] > found["c=1/128"] > found["c=1/64"] > 10
