"""Processes that capture and may die: forked from one that has imported everything, so that a death costs half a second.

A publication on a disk is a rename, or the link that a lease is made by; behind a URL it is a put. A process can be told to kill
itself right before the n-th publication of a kind of file, when on a disk the half of it is there under another name, or right after.
"""

import functools
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from captures import take

from pipeline.cli import main
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.remote.store import RemoteStore
from pipeline.contract.store import open_store
from pipeline.executors import child
from stage1_teacher.leases import Leases

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


def start(manifest: ShardManifest, cache: Path | str, death: Death | None = None, **options: Any) -> BaseProcess:
    """Begin a capture in a process of its own. Options: `environment` is added to this one's, `without_leases` works regardless."""
    return _start(_capture, manifest, cache, death, options)


def start_command(arguments: list[str], stderr: Path, **options: Any) -> BaseProcess:
    """Begin `pipeline ARGUMENTS` as a terminal would, in a process group of its own.

    Options: `file_bytes` that no file it writes may exceed, as on a full disk; `fork_workers` that have all things loaded too.
    """
    return _start(_command, arguments, stderr, options)


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    warm_up()
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    process.start()
    return process


@functools.cache
def warm_up() -> None:
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


def _capture(manifest: ShardManifest, cache: Path | str, death: Death | None, options: dict[str, Any]) -> None:
    os.environ |= options.pop("environment", {})
    if options.pop("without_leases", False):
        Leases.take = lambda leases, unit: True  # type: ignore[method-assign]
    if death:
        _die_at(cache, death)
    take(manifest, open_store(cache), **options)


def _command(arguments: list[str], stderr: Path, options: dict[str, Any]) -> None:
    os.setsid()
    with stderr.open("w") as file:
        os.dup2(file.fileno(), 2)
    if limit := options.get("file_bytes"):
        sys.dont_write_bytecode = True  # it would be cut off too, and stay
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if options.get("fork_workers"):
        fork = multiprocessing.get_context("fork")
        child.multiprocessing.get_context = lambda kind: fork
    sys.argv = ["pipeline", *arguments]
    main()


def _die_at(cache: Path | str, death: Death) -> None:
    seen = 0

    def wrapped(publish: Callable[..., Any], target_of: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any) -> Any:
            nonlocal seen
            target = Path(target_of(*arguments))
            counts = target.is_relative_to(cache) and target.relative_to(cache).match(KINDS[death.kind])
            seen += counts
            if counts and seen == death.number and death.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = publish(*arguments)
            if counts and seen == death.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return around

    os.link, os.rename = (wrapped(publish, lambda source, target: target) for publish in (os.link, os.rename))
    RemoteStore._upload = wrapped(RemoteStore._upload, lambda store, source, size, name: store._url(name))
    RemoteStore._put_if_absent = wrapped(RemoteStore._put_if_absent, lambda store, name, data: store._url(name))
