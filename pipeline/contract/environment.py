"""What ran: versions of packages and the commit of the code; no host name, no secret."""

import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def start_record(packages: Iterable[str]) -> dict[str, Any]:
    """When a start was, and with what; the version of a package that is not there is None."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "commit": commit(),
        "machine": platform.machine(),
    }


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
