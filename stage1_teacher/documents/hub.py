"""Sets of the Hugging Face hub: `hub:datasets/OWNER/NAME/PATTERN`, from the local cache or over the network."""

import fnmatch
from pathlib import Path

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import reason
from stage1_teacher.documents.listing import files_below, fixed_part, named
from stage1_teacher.documents.source_file import SourceFile

HUB = "hub:"
HUB_SECONDS = 5  # to hear from the hub at all; a machine without network should learn it fast


def hub_files(entry: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """The set's files that match, in the local cache, completed over the network where there is one.

    Raises:
        DocumentError: for an entry of another form, or a set that is neither here nor reachable.
    """
    kind, owner, name, pattern = ([*entry.removeprefix(HUB).split("/", 3), "", "", "", ""])[:4]
    if kind != "datasets" or not (owner and name and pattern):
        raise DocumentError(f"documents.files={entry}: write hub:datasets/OWNER/NAME/PATTERN, or give a local path")
    patterns = [pattern, f"{pattern.rstrip('/')}/*"]
    snapshot = _snapshot(f"{owner}/{name}", patterns)
    matches = [path for path in files_below(str(snapshot)) if _matches(path.removeprefix(f"{snapshot}/"), patterns)]
    return named(_root_of(snapshot, pattern), dict.fromkeys(matches), suffixes)


def _matches(name: str, patterns: list[str]) -> bool:
    """As the hub does it: '*' also crosses '/'."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _root_of(snapshot: Path, pattern: str) -> str:
    folder = snapshot / pattern
    return str(folder) if folder.is_dir() else fixed_part(str(folder))


def _snapshot(dataset: str, patterns: list[str]) -> Path:
    """The set's folder in the local hub cache.

    Asking for the revision first, with a short timeout, spares a machine without network the long retries of a download.
    """
    refusal: Exception | None = None
    try:
        from huggingface_hub import HfApi, snapshot_download

        try:
            revision = HfApi().repo_info(dataset, repo_type="dataset", timeout=HUB_SECONDS).sha
        except Exception as error:  # offline, no such set, gated; the client under the hub library changes (requests, httpx, httpx2)
            refusal, revision = error, None
        folder = snapshot_download(
            dataset, repo_type="dataset", revision=revision, allow_patterns=patterns, local_files_only=revision is None
        )
    except Exception as error:
        raise _missing(dataset, patterns[0], refusal or error) from None
    return Path(folder)


def _missing(dataset: str, pattern: str, error: Exception) -> DocumentError:
    return DocumentError(
        f"dataset {dataset} ({pattern}): is not complete in the local hub cache, and the hub gave "
        f"{type(error).__name__} ({reason(error)}); "
        f"where there is network: hf download {dataset} --repo-type dataset --include '{pattern}', or --set documents.files=PATH"
    )
