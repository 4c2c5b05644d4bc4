"""From the manifest's `documents` section to the source that reads it; each reader is imported when it is chosen."""

from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.duplicates import WithoutDuplicates
from stage1_teacher.documents.files import resolve_files


def open_documents(documents: Documents) -> DocumentSource:
    """Find the files or packages, listing each folder once; documents themselves are read when the source is iterated.

    Raises:
        DocumentError: for files or packages that are not there.
    """
    source = _open(documents)
    return WithoutDuplicates(source) if documents.duplicates == "drop" else source


def _open(documents: Documents) -> DocumentSource:
    match documents.source:
        case "parquet":
            from stage1_teacher.documents import parquet

            return parquet.ParquetDocuments(resolve_files(documents.files, parquet.SUFFIXES), documents.column, documents.undecodable)
        case "jsonl":
            from stage1_teacher.documents import jsonl

            return jsonl.JsonlDocuments(resolve_files(documents.files, jsonl.SUFFIXES), documents.column, documents.undecodable)
        case "text":
            from stage1_teacher.documents import text_folder

            return text_folder.TextDocuments(resolve_files(documents.files, text_folder.SUFFIXES), documents.undecodable)
        case "installed":
            from stage1_teacher.documents import installed

            return installed.InstalledDocuments(installed.find_sources(documents.packages), documents.packages, documents.undecodable)
