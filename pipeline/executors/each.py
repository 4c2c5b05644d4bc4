"""Independent pieces of work on an executor, a seat each: all are seen to their end, and one that dies is started again."""

from collections.abc import Callable, Mapping

from pipeline.contract.errors import PipelineError
from pipeline.executors.base import ATTEMPTS, GRACE_SECONDS, Ended, Executor, Work


def run_each(
    executor: Executor,
    works: Mapping[str, Work],
    on_death: Callable[[str], None],
    at_once: int | None = None,
    grace: float = GRACE_SECONDS,
) -> None:
    """See all `works` done, which are told apart by name; what they send is not listened to. `on_death` gets a line about each that died.

    They are started in their order, `at_once` of them at a time; without it all at once, for an executor that lets them wait for room.
    When this is interrupted, they get `grace` seconds to put away what they have in hand.

    Raises:
        PipelineError: some could not be done; raised when all others have been.
    """
    waiting, tried = list(works), dict.fromkeys(works, 0)
    doing: dict[int, str] = {}
    problems: dict[str, PipelineError] = {}

    def start(seat: int, name: str) -> None:
        doing[seat] = name
        tried[name] += 1
        executor.start(seat, works[name])

    try:
        for seat in range(min(at_once or len(works), len(works))):
            start(seat, waiting.pop(0))
        while doing:
            seat, message = executor.receive()
            if not isinstance(message, Ended):
                continue
            name = doing.pop(seat)
            if isinstance(message.problem, str) and tried[name] < ATTEMPTS:
                on_death(f"{name} died ({message.problem}); it is started again")
                start(seat, name)
                continue
            if message.problem is not None:
                problems[name] = _problem(name, message.problem)
                on_death(str(problems[name]))
            if waiting:
                start(seat, waiting.pop(0))
    finally:
        executor.end(grace)
    if problems:
        raise _first_of(problems)


def _problem(name: str, problem: PipelineError | str) -> PipelineError:
    if isinstance(problem, PipelineError):
        return problem
    return PipelineError(f"{name}: died {ATTEMPTS} times, the last of {problem}; what it said stands above, and the same command goes on")


def _first_of(problems: Mapping[str, PipelineError]) -> PipelineError:
    first = next(iter(problems.values()))
    others = len(problems) - 1
    return PipelineError(f"{first} (and {others} more, above)") if others else first
