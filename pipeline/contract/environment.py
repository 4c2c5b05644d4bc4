"""What ran: versions of packages and the commit of the code; no host name, no secret."""

import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The version of each installed package, None of one that is not there."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout this code runs from, None in an installed wheel."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
