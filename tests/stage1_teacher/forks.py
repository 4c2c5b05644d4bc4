"""Processes that capture and may die: forked from one that has imported everything, so that a death costs half a second.

A publication is a rename, or the link that a lease is made by. A process can be told to kill itself right before the n-th
publication of a kind of file, when the half of it is there under another name, or right after it.
"""

import functools
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from captures import take

from pipeline.contract.manifest.shard import ShardManifest

KINDS = {
    "rule": "rule.json",
    "teacher file": "teacher/*",
    "teacher record": "teacher.json",
    "vocabulary file": "vocabulary.arrow",
    "vocabulary record": "vocabulary.json",
    "lease": "leases/*",
    "payload": "shards/*.arrow",
    "sidecar": "shards/*.json",
    "log": "logs/*",
    "manifest": "manifest.json",
}


class Death(NamedTuple):
    """SIGKILL right "before" or "after" the `number`-th publication of a kind of file, counted from 1."""

    when: str
    kind: str
    number: int = 1


def start(manifest: ShardManifest, cache: Path, death: Death | None = None, **options: Any) -> BaseProcess:
    """Begin a capture in a process of its own; `environment` among the options is added to this one's."""
    _warm_up()
    process = multiprocessing.get_context("forkserver").Process(target=_capture, args=(manifest, cache, death, options), daemon=True)
    process.start()
    return process


@functools.cache
def _warm_up() -> None:
    """Start the process that is forked from; it finds modules by the environment alone."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.set_forkserver_preload(["warm"])
        forkserver.ensure_running()


def run(*arguments: Any, **options: Any) -> int:
    """The same to its end: 0, or minus the number of the signal that ended it."""
    process = start(*arguments, **options)
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def _capture(manifest: ShardManifest, cache: Path, death: Death | None, options: dict[str, Any]) -> None:
    os.environ |= options.pop("environment", {})
    if death:
        _die_at(cache, death)
    take(manifest, cache, **options)


def _die_at(cache: Path, death: Death) -> None:
    seen = 0

    def wrapped(publish: Any) -> Any:
        def around(source: Any, target: Any, **more: Any) -> Any:
            nonlocal seen
            counts = Path(target).is_relative_to(cache) and Path(target).relative_to(cache).match(KINDS[death.kind])
            seen += counts
            if counts and seen == death.number and death.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = publish(source, target, **more)
            if counts and seen == death.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return around

    os.link, os.rename = wrapped(os.link), wrapped(os.rename)
