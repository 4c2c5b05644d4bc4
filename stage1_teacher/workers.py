"""Several workers on this machine: processes that share a cache's folder or bucket and nothing else."""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from pipeline.contract.errors import PipelineError
from pipeline.contract.logit_cache.index import Rule, ShardRecord
from pipeline.contract.process import end_with_parent, prepare_cpu_process
from stage1_teacher.worker import CaptureRequest, Dealt, Worker


def run_workers(request: CaptureRequest, rule: Rule) -> Dealt:
    """Start `request.workers` processes and wait; what a killed one had in hand is taken over by the others.

    Raises:
        PipelineError: the first that a worker raised, or that all of them ended before the work did.
    """
    started: dict[Connection, BaseProcess] = {}
    try:
        for number in range(request.workers):
            started |= _start(request, rule, number)
        return _listen(request, started)
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.join()


def _start(request: CaptureRequest, rule: Rule, number: int) -> dict[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, replace(request, on_shard=_nobody), rule, number), daemon=True)
    with _deaf_to_control_c():
        process.start()
    theirs.close()
    return {ours: process}


@contextmanager
def _deaf_to_control_c() -> Iterator[None]:
    """What is started meanwhile never hears Ctrl-C: the terminal sends it to all, and the command ends its workers itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(request: CaptureRequest, working: dict[Connection, BaseProcess]) -> Dealt:
    """Pass reports on until every worker that lives has come to the end."""
    dealt, open_ends = None, set(working)
    made: set[str] = set()
    there: dict[str, ShardRecord] = {}  # what one worker finds, another may have just made: who made it tells
    while open_ends:
        for end in wait(list(open_ends)):
            assert isinstance(end, Connection)
            try:
                message = end.recv()
            except (EOFError, OSError):
                open_ends.discard(end)
                working[end].join()  # asked after, or its leases would look held
                continue
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, Dealt):
                dealt = message
            elif message[1]:
                there[message[0].name] = message[0]
            elif message[0].name not in made:  # two may have made it: leases only save work
                made.add(message[0].name)
                request.on_shard(*message)
    for name in sorted(there.keys() - made):
        request.on_shard(there[name], True, 0.0)
    if dealt is None:
        codes = ", ".join(str(process.exitcode) for process in working.values())
        raise PipelineError(f"--workers {request.workers}: all ended before their work (exit codes {codes}); run the same command again")
    return dealt


def _work(end: Connection, request: CaptureRequest, rule: Rule, number: int) -> None:
    """A worker's process: reports shards, then how documents were dealt, or what went wrong."""
    signal.signal(signal.SIGTERM, _stop)
    end_with_parent()
    prepare_cpu_process()
    _choose_device(number)

    def report(record: ShardRecord, reused: bool, seconds: float) -> None:
        end.send((record, reused, seconds))

    with suppress(KeyboardInterrupt, BrokenPipeError):  # told to end, or nobody is left to tell
        if not multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]
            return  # it died before the system was asked to tell
        try:
            end.send(Worker(replace(request, on_shard=report), rule).run())
        except PipelineError as error:
            end.send(error)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is in hand any more


def _stop(number: int, frame: Any) -> None:
    """The first SIGTERM drops the shard in hand; a dying parent may send more, which would interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _choose_device(number: int) -> None:
    """Worker n on the n-th of the visible GPUs, round and round."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())


def _nobody(*_: Any) -> None:
    """Reports go through the pipe."""
