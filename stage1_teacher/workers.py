"""Several workers on an executor: processes that share a cache's folder or bucket and nothing else.

One that dies, with its engine or its machine, is replaced, and what it had in hand goes to another. A shard that several die at, or a
place in which none comes as far as a shard, is given up by name: to die for ever would cost more than to stop.
"""

import socket
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.logit_cache.index import RULE, Rule, ShardRecord
from pipeline.contract.process import prepare_cpu_process, process_mark
from pipeline.executors.base import ATTEMPTS, Ended, Executor, Send
from pipeline.executors.devices import deal, visible_devices
from pipeline.executors.local import LocalExecutor
from stage1_teacher.engines.base import EngineDied
from stage1_teacher.leases import drop_leases_of
from stage1_teacher.worker import Begun, CaptureRequest, Dealt, Worker


def run_workers(request: CaptureRequest, rule: Rule) -> Dealt:
    """Put `request.workers` workers on the request's executor, on this machine's devices if it has none, and see them to the end.

    Raises:
        PipelineError: the first that a worker raised; a shard was given up; or no worker comes as far as a shard any more.
    """
    executor = request.executor or LocalExecutor(deal(visible_devices(), request.shard.cache.tensor_parallel, request.workers))
    try:
        return _Crew(request, rule, executor).run()
    finally:
        executor.end()


@dataclass(frozen=True)
class Started:
    """The first word of a worker: the mark of its process, by which its leases are known."""

    mark: str


@dataclass
class _Seat:
    """What is known of one worker's place.

    Attributes:
        mark: of the process that works there.
        in_hand: the shard that it scores.
        late: the process that works there has not come to a shard yet.
        vain: processes that died there, one after the other, before they came to a shard.
        died_at: shards that processes there died at; left to other seats.
    """

    mark: str = ""
    in_hand: Begun | None = None
    late: bool = True
    vain: int = 0
    died_at: set[str] = field(default_factory=set)


class _Crew:
    """The workers of one request, from the side that started them."""

    def __init__(self, request: CaptureRequest, rule: Rule, executor: Executor) -> None:
        self.request, self.rule, self.executor = request, rule, executor
        self._seats = {number: _Seat() for number in range(request.workers)}
        self._attempts: Counter[str] = Counter()
        self._reports = _Reports(request)
        self._dealt: Dealt | None = None
        self._reason = ""

    def run(self) -> Dealt:
        for number in self._seats:
            self._start(number)
        while self._dealt is None or not all(seat.late for seat in self._seats.values()):  # for the late nothing is left to do
            if not self._seats:
                raise self._nobody_left()
            self._hear(*self.executor.receive())
        self._reports.close()
        return self._dealt

    def _nobody_left(self) -> PipelineError:
        return PipelineError(
            f"--workers {self.request.workers}: none comes as far as a shard, each place was tried {ATTEMPTS} times (the last ended "
            f"with {self._reason}); what they said stands above, and the same command goes on"
        )

    def _start(self, number: int) -> None:
        plain = replace(self.request, executor=None, on_shard=_nobody, on_begin=_nobody, on_death=_nobody)
        shunned = frozenset(self._seats[number].died_at) if len(self._seats) > 1 else frozenset()
        self.executor.start(number, partial(_work, plain, self.rule, shunned))

    def _hear(self, number: int, message: Any) -> None:
        seat = self._seats[number]
        match message:
            case Started():
                seat.mark = message.mark
            case Begun():
                seat.in_hand, seat.late, seat.vain = message, False, 0
            case Dealt():
                self._dealt = message
            case Ended(problem=None):
                del self._seats[number]
            case Ended(problem=PipelineError() as error) if not isinstance(error, EngineDied):
                raise error
            case Ended():
                self._bury(number, seat, str(message.problem))
            case _:
                seat.in_hand = None
                self._reports.add(*message)

    def _bury(self, number: int, seat: _Seat, reason: str) -> None:
        """A process is dead: free what it held, and start another in its place unless that was in vain too often.

        Raises:
            PipelineError: the shard in hand has had its attempts.
        """
        self._reason = reason
        drop_leases_of(self.request.cache, seat.mark)
        lost, seat.in_hand, seat.mark, seat.late = seat.in_hand, None, "", True
        if lost:
            self._count(lost, reason)
            seat.died_at.add(lost.name)
        else:
            seat.vain += 1
        again = self._dealt is None and seat.vain < ATTEMPTS
        self.request.on_death(
            f"worker {number} died ({reason}) at {lost or 'no shard yet'}; "
            + ("another starts in its place" if again else "the others go on without it")
        )
        if again:
            self._start(number)
        else:
            del self._seats[number]

    def _count(self, lost: Begun, reason: str) -> None:
        self._attempts[lost.name] += 1
        if self._attempts[lost.name] == ATTEMPTS:
            raise PipelineError(
                f"{lost}: {ATTEMPTS} workers died at it, the last of {reason}; what is finished is kept; if these documents are at fault, "
                "take them out of the source or try another --engine, else mend the machines and run the same command again"
            )


class _Reports:
    """Shards as workers report them: each once, and as made if any of them made it."""

    def __init__(self, request: CaptureRequest) -> None:
        self.request = request
        self._made: set[str] = set()
        self._there: dict[str, ShardRecord] = {}  # what one worker finds, another may have just made: who made it tells

    def add(self, record: ShardRecord, reused: bool, seconds: float) -> None:
        if reused:
            self._there[record.name] = record
        elif record.name not in self._made:  # two may have made it: leases only save work
            self._made.add(record.name)
            self.request.on_shard(record, reused, seconds)

    def close(self) -> None:
        for name in sorted(self._there.keys() - self._made):
            self.request.on_shard(self._there[name], True, 0.0)


def _work(request: CaptureRequest, rule: Rule, shunned: frozenset[str], send: Send) -> None:
    """A worker's process: reports shards, then how documents were dealt."""
    send(Started(process_mark()))
    prepare_cpu_process()
    _require_shared(request)

    def report(record: ShardRecord, reused: bool, seconds: float) -> None:
        send((record, reused, seconds))

    send(Worker(replace(request, on_shard=report, on_begin=send), rule, shunned).run())


def _require_shared(request: CaptureRequest) -> None:
    """The command has put the rule into the cache before it started anybody."""
    if request.cache.size(RULE) is None:
        raise CacheError(
            f"{request.cache}: is another folder on {socket.gethostname()}; give --root one that all machines share, or a bucket's URL"
        )


def _nobody(*_: Any) -> None:
    """Reports go to whoever started us."""
