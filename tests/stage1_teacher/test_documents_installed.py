"""Documentation that every machine has installed."""

import itertools
import json
import platform
import shlex
from pathlib import Path

import pytest
import xxhash
from corpora import documents, one_line, opened

from pipeline.contract.errors import DocumentError
from pipeline.contract.manifest.overrides import merge, nested, read_overrides, split_by_owner
from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.installed import InstalledDocuments, find_sources
from stage1_teacher.documents.open_source import open_documents


def docstring(name: str) -> str:
    return f"{name} " + "explains itself at length. " * 10


def definitions(*names: str) -> str:
    return "".join(f'def {name}():\n    """{docstring(name)}"""\n\n\n' for name in names)


FAKE_FILES = {
    "fake_lib/__init__.py": b"raise SystemExit('imported')\n",
    "fake_lib/many.py": f'"""{docstring("module")}"""\n\n\n{definitions("f", "g")}class C:\n    """Short."""\n\n'.encode()
    + b"    async def m(self):\n"
    + f'        """{docstring("m")}\n\n          indented\n        """\n\n\n{definitions("n")}'.encode(),
    "fake_lib/tests/test_many.py": definitions("hidden").encode(),
    "fake_lib/broken.py": definitions("hidden").encode() + b"def (:\n",
    "fake_lib/latin.py": b"# -*- coding: latin-1 -*-\n" + definitions("caf\xe9").encode("latin-1"),
    "fake_lib/surrogate.py": b'"""' + rb"lone \ud800" + b" x" * 200 + b'"""\n',
}


@pytest.fixture
def fake_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution fake-dist 1.2+local, whose import name is another."""
    site = tmp_path / "site"
    info = site / "fake_dist-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 1.2+local\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*FAKE_FILES, "../bin/fake.py", "fake_lib/gone.py"]))
    for name, data in (FAKE_FILES | {"../bin/fake.py": b""}).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_package_gives_four_docstrings_a_file_in_source_order(fake_distribution: Path) -> None:
    everything = find_sources({"fake-dist": "1.2"})
    own = [source for source in everything if source.name.startswith("fake_lib/")]
    found = list(InstalledDocuments(own, {"fake-dist": "1.2"}, "skip"))
    many = [document for document in found if "many.py" in document.origin]
    assert [(document.text or "").split()[0] for document in many] == ["module", "f", "g", "m"]  # not C (short), not n (the fifth)
    assert [document.origin.rpartition(" ")[2] for document in many] == ["1", "4", "8", "15"]
    assert (many[3].text or "").endswith("\n\nindented")
    others = {Path(document.origin.split(" line")[0]).name: (document.text or "")[:4] for document in found if document not in many}
    assert others == {"latin.py": "café", "surrogate.py": ""}


def test_the_order_is_that_of_the_hashes_of_the_names(fake_distribution: Path) -> None:
    names = [source.name for source in find_sources({"fake-dist": "1.2"})]
    assert names == sorted(names, key=lambda name: xxhash.xxh3_64_hexdigest(name.encode()))
    assert {"topics/assert", "stdlib/json/decoder.py", "fake_lib/many.py", "fake_lib/broken.py"} <= set(names)
    skipped = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "__pycache__", ".."}
    assert not [name for name in names if skipped & set(name.split("/"))]


def test_installed_documents_are_the_same_twice(fake_distribution: Path) -> None:
    packages = {"fake-dist": "1.2"}
    first, second = opened("installed", packages=packages), opened("installed", packages=packages)
    fifty = list(itertools.islice(first, 50))
    assert fifty == list(itertools.islice(second, 50)) == list(itertools.islice(first, 50))
    assert all(document.text and len(document.text) >= 200 for document in fifty)
    assert len({document.origin.split(" line")[0] for document in fifty}) > 12
    identity = first.identity()
    assert identity == second.identity() and json.loads(json.dumps(identity)) == identity
    assert (identity["source"], identity["python"], identity["packages"]) == ("installed", platform.python_version(), packages)
    with open(fake_distribution / "fake_lib/many.py", "a") as file:
        file.write("\n")
    changed = first.identity()
    assert changed["xxh3_128"] != identity["xxh3_128"] and changed["files"] == identity["files"]


def test_a_missing_package_says_how_to_install_it() -> None:
    with pytest.raises(DocumentError, match=r"not installed; pip install no-such-distribution==1\.0"):
        opened("installed", packages={"no-such-distribution": "1.0"})


def test_another_version_gives_both_ways_out_and_the_second_works(fake_distribution: Path) -> None:
    pinned = documents("installed", packages={"fake-dist": "1.3"})
    with pytest.raises(DocumentError) as error:
        open_documents(pinned)
    message = one_line(error)
    assert "1.3 is pinned, and 1.2+local is installed; pip install fake-dist==1.3" in message
    words = shlex.split(message)
    shard, _ = split_by_owner(read_overrides([words[words.index("--set") + 1]]))
    mended = merge(pinned.model_dump(), nested(shard)["documents"])
    assert iter(open_documents(Documents.model_validate(mended)))
