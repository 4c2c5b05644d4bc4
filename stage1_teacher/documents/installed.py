"""English documents that every machine has: pydoc topics, and docstrings of the standard library and of pinned packages.

They let the whole pipeline run with no hub. Sources are parsed, never imported: reading torch's docstrings must not load
torch. Files come in the order of a hash of their names and give four docstrings at most, so that the first hundred
documents sample every package. Packages are pinned, because another version is another set of documents.
"""

import ast
import os
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import xxhash

from pipeline.contract.errors import DocumentError
from pipeline.contract.hashing import hash_bytes, hash_file, hash_json
from stage1_teacher.documents.base import RawDocument, Undecodable, broken_file, check_text
from stage1_teacher.documents.source_file import SourceFile

SHORTEST_DOCSTRING = 200  # characters
DOCSTRINGS_PER_FILE = 4  # the next ones of a file resemble the first

# pydoc_data is read as topics; the others are tests, code that is data, or other people's packages.
NOT_LIBRARIES = ("idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data")
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "lib-dynload", "test", "tests", *NOT_LIBRARIES})
# Written when Python is built or installed: no documents, and they differ between machines that have the same ones.
BUILD_FILES = ("_sysconfigdata", "config-")


@dataclass(frozen=True)
class Source:
    """A file or a pydoc topic."""

    name: str  # "stdlib/json/decoder.py", "numpy/linalg/_linalg.py", "topics/assert"
    path: Path | None  # None for a topic


@dataclass(frozen=True)
class InstalledDocuments:
    """One document a topic or docstring; `sources` as `find_sources` gives them."""

    sources: Sequence[Source]
    packages: Mapping[str, str]
    undecodable: Undecodable

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        hashes = sorted((source.name, _hash(source)) for source in self.sources)
        return {
            "source": "installed",
            "python": platform.python_version(),
            "packages": dict(self.packages),
            "files": len(hashes),
            "xxh3_128": hash_json(hashes),
        }

    def __iter__(self) -> Iterator[RawDocument]:
        for source in self.sources:
            for place, text in _texts(source):
                yield check_text(text, self.undecodable, f"{source.path or source.name}{place}")


def find_sources(packages: Mapping[str, str]) -> list[Source]:
    """Every topic and file, ordered by a hash of its name; opens none of them.

    Raises:
        DocumentError: for a pinned package that is missing, of another version, or without source files.
    """
    sources = [source for package, version in packages.items() for source in _package(package, version)]
    sources += [Source(f"topics/{topic}", None) for topic in _topics()] + _standard_library()
    unique = {source.name: source for source in sources}
    return sorted(unique.values(), key=lambda source: (xxhash.xxh3_64_hexdigest(source.name.encode()), source.name))


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics  # 700 kB of text: loaded when asked for

    return topics


def _standard_library() -> list[Source]:
    root = Path(sysconfig.get_path("stdlib"))
    sources = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if _is_read(PurePath(name))]  # site-packages may be larger than the rest
        names = [Path(folder, name).relative_to(root) for name in files if name.endswith(".py")]
        sources += [Source(f"stdlib/{name.as_posix()}", root / name) for name in names if _is_read(name)]
    return sources


def _package(package: str, version: str) -> list[Source]:
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise DocumentError(
            f"documents.packages: {package} {version} is pinned, and not installed; pip install {package}=={version}, "
            "or take it out of the manifest"
        ) from None
    _check_version(package, version, distribution.version)
    # The files say what is imported: a distribution's name may be another, and it may bring several packages.
    files = [(name, Path(str(distribution.locate_file(name)))) for name in distribution.files or []]
    sources = [Source(name.as_posix(), path) for name, path in files if name.suffix == ".py" and _is_read(name) and path.is_file()]
    if not sources:
        raise DocumentError(f"documents.packages: {package} {version} records no .py files; pip install --force-reinstall it, not editable")
    return sources


def _check_version(package: str, pinned: str, installed: str) -> None:
    """A local label ("2.13.0+cpu") names a build of the same sources."""
    if pinned not in (installed, installed.partition("+")[0]):
        raise DocumentError(
            f"documents.packages: {package} {pinned} is pinned, and {installed} is installed; pip install {package}=={pinned}, "
            f"or --set 'documents.packages={{{package}: \"{installed}\"}}' for other documents"
        )


def _is_read(name: PurePath) -> bool:
    outside = name.is_absolute() or ".." in name.parts
    return not outside and SKIPPED_FOLDERS.isdisjoint(name.parts) and not any(part.startswith(BUILD_FILES) for part in name.parts)


def _hash(source: Source) -> str:
    if source.path is None:
        return hash_bytes(_text_of_topic(source).encode())
    try:
        return hash_file(source.path)
    except OSError as error:
        raise broken_file(SourceFile(str(source.path), source.name), "", error) from None


def _text_of_topic(source: Source) -> str:
    return _topics()[source.name.removeprefix("topics/")]


def _texts(source: Source) -> Iterator[tuple[str, str]]:
    """Where in the source (" line 12"; "" for a topic) and the text."""
    if source.path is None:
        yield "", _text_of_topic(source)
        return
    count = 0
    for line, docstring in _docstrings(source.path):
        if len(docstring) >= SHORTEST_DOCSTRING and count < DOCSTRINGS_PER_FILE:
            count += 1
            yield f" line {line}", docstring


def _docstrings(path: Path) -> list[tuple[int, str]]:
    """Line of the definition and cleaned docstring, in source order; nothing for a file that is not Python to this Python."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    except OSError as error:
        raise broken_file(SourceFile(str(path), path.name), "", error) from None
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [(getattr(node, "lineno", 1), ast.get_docstring(node)) for node in ast.walk(tree) if isinstance(node, kinds)]
    return sorted(((line, docstring) for line, docstring in found if docstring), key=lambda place: place[0])
