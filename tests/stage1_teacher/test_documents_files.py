"""From entries to files: order, names, and each folder listed once."""

import itertools
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from corpora import one_line, opened, texts

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.files import resolve_files


def test_entries_keep_their_order_and_no_file_is_read_twice(tmp_path: Path) -> None:
    for name in ("z/2.txt", "z/10.txt", "a/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(opened("text", tmp_path / "z", tmp_path / "a/1.txt", tmp_path / "z/*.txt")) == ["z/10.txt", "z/2.txt", "a/1.txt"]
    assert texts(opened("text", f"{tmp_path}/**/*.txt")) == ["a/1.txt", "z/10.txt", "z/2.txt"]


@pytest.mark.parametrize("entry", ["nowhere", "nowhere/*.parquet", ""])
def test_an_entry_that_gives_nothing_is_named(tmp_path: Path, entry: str) -> None:
    (tmp_path / "readme.md").write_text("no parquet here")
    with pytest.raises(DocumentError) as error:
        opened("parquet", tmp_path / entry)
    assert all(part in one_line(error) for part in (f"documents.files={tmp_path / entry}", ".parquet", "--set documents.files="))


def test_no_entry_at_all_and_half_a_hub_entry_say_what_to_do() -> None:
    with pytest.raises(DocumentError, match=r"--set documents\.files=PATH"):
        opened("parquet")
    with pytest.raises(DocumentError, match="hub:datasets/OWNER/NAME/PATTERN"):
        opened("parquet", "hub:HuggingFaceFW/fineweb-edu")


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    for name in ("a.txt", "._a.txt", "b/.c.txt", ".cache/d.txt", "b/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(opened("text", tmp_path)) == ["a.txt", "b/e.txt"] == texts(opened("text", f"{tmp_path}/**/*.txt"))


@pytest.mark.parametrize(
    ("entry", "names"), [(".", ["a.txt", "b/c.txt"]), ("*.txt", ["a.txt"]), ("b", ["c.txt"]), ("./b/c.txt", ["c.txt"])]
)
def test_a_relative_entry_gives_the_names_of_an_absolute_one(
    tmp_path: Path, entry: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.txt", "b/c.txt", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    absolute = [file.name for file in resolve_files([f"{tmp_path}/{entry}"], (".txt",))]
    monkeypatch.chdir(tmp_path)
    assert [file.name for file in resolve_files([entry], (".txt",))] == absolute == names


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    assert resolve_files([f"file://{tmp_path}"], (".txt",)) == resolve_files([str(tmp_path)], (".txt",))
    assert resolve_files([str(tmp_path), f"file://{tmp_path}/a.txt"], (".txt",)) == resolve_files([str(tmp_path)], (".txt",))


def test_a_link_to_nothing_is_an_error_not_a_gap(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DocumentError, match=r"b\.txt: the file is .*No such file"):
        texts(opened("text", tmp_path))


def test_a_folder_that_cannot_be_listed_is_an_error_not_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "a.txt").write_text("one")
    scandir = os.scandir

    def refuses(path: Any) -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(DocumentError, match=r"shut: cannot be listed \(Permission denied\); make it readable"):
        opened("text", tmp_path)


def test_folders_are_listed_once_however_often_the_source_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (tmp_path / f"{number % 4}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 4}" / f"{number:03}.txt").write_text(f"document {number}")
    listed: Counter[str] = Counter()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.update([str(path)]), scandir(path))[1])
    source = opened("text", tmp_path)
    assert listed == Counter([str(tmp_path), *(f"{tmp_path}/{folder}" for folder in range(4))])
    assert texts(source) == texts(source) and source.identity() == source.identity()
    assert listed.total() == 5


def events_to_list(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Calls of functions, Python's and C's, that it takes to list `count` files of a folder that is not really there."""
    names = [f"{(number * 7919) % count:06}.parquet" for number in range(count)]
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    monkeypatch.setattr(os, "walk", lambda folder, onerror: iter([(folder, [], names)]))
    events = itertools.count()
    sys.setprofile(lambda frame, event, argument: next(events))
    files = resolve_files(["/crawl"], (".parquet",))
    sys.setprofile(None)
    assert [file.name for file in files] == sorted(names) and files[-1].path == f"/crawl/{count - 1:06}.parquet"
    return next(events)


def test_listing_100_000_files_is_no_more_work_a_file_than_listing_1_000(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = events_to_list(1_000, monkeypatch), events_to_list(100_000, monkeypatch)
    assert many < 101 * few
