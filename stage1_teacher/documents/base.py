"""What every source of documents promises, and the one place that decides what undecodable or empty text becomes.

A source yields *every* raw document, the skipped ones too, in an order that depends on the files alone. So a document's
number is its address, whatever policy is chosen, and the counts by reason add up to what was read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.source_file import RemoteReadError, SourceFile

Undecodable = Literal["error", "skip", "replace"]


@dataclass(frozen=True)
class RawDocument:
    """One document as found, before tokenisation."""

    text: str | None  # None when it is to be skipped
    origin: str  # "/data/000_00000.parquet row 17": rows count from 0, lines from 1
    skip: str | None = None  # why text is None: "null", "undecodable", "empty", "duplicate"


class DocumentSource(Protocol):
    """Iterating starts at the first document each time and reads lazily, in bounded memory."""

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What identifies the documents, JSON-able; reads every byte of the source whose hash is not known already.

        `like` is an identity recorded earlier: files are hashed as they were then, so that equal ones compare equal.

        Raises:
            DocumentError: when a file cannot be read.
        """

    def __iter__(self) -> Iterator[RawDocument]:
        """Every raw document, in order.

        Raises:
            DocumentError: naming file and row, for what is truncated, corrupt or undecodable.
        """


def decode(raw: bytes, policy: Undecodable, origin: str) -> RawDocument:
    """Apply the manifest's `undecodable` policy; text of whitespace alone is skipped as "empty".

    Raises:
        DocumentError: for bytes that are not UTF-8, under the policy "error".
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if policy == "error":
            raise DocumentError(
                f"{origin}: bytes {raw[error.start : error.end]!r} at {error.start} are not UTF-8 ({error.reason}); "
                "mend the file, or --set documents.undecodable=skip (or replace)"
            ) from None
        if policy == "skip":
            return RawDocument(None, origin, "undecodable")
        text = raw.decode("utf-8", "replace")
    return RawDocument(text, origin) if text.strip() else RawDocument(None, origin, "empty")


def check_text(text: str, policy: Undecodable, origin: str) -> RawDocument:
    r"""The same policy for text that is decoded already: an escape such as "\ud800" makes a string that is not UTF-8.

    Raises:
        DocumentError: for a lone surrogate, under the policy "error".
    """
    return decode(text.encode("utf-8", "surrogatepass"), policy, origin)


def broken_file(file: SourceFile, where: str, error: BaseException) -> DocumentError:
    """One line for a file that cannot be read to its end; `where` is "row 17", "line 3" or ""."""
    size = file.size()
    place = f"{file} {where}".rstrip() + (": the file" if size is None else f": the file ({size:,} bytes)")
    if isinstance(error, RemoteReadError):
        return DocumentError(f"{place} cannot be reached ({reason(error)}); check network and credentials, and run the same command again")
    return DocumentError(f"{place} is truncated, corrupt or unreadable ({reason(error)}); fetch it again")


def reason(error: BaseException) -> str:
    """The first line of an error's message, or its kind, cut to fit into another line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
