"""The `pipeline` command: which commands there are, and how an error becomes one line and an exit code.

Exit 0 done, 2 the user's to mend, 1 a bug with its traceback.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from pipeline.commands import cache, shards
from pipeline.commands.cache_teacher import cache_teacher
from pipeline.commands.demo import demo
from pipeline.commands.diagnose import diagnose
from pipeline.commands.doctor import doctor
from pipeline.commands.evaluate import evaluate
from pipeline.commands.pilot import pilot
from pipeline.commands.plan import plan
from pipeline.commands.report import report
from pipeline.commands.run import run
from pipeline.commands.track import track
from pipeline.commands.train import train
from pipeline.commands.train_teacher import train_teacher
from pipeline.commands.watch import watch
from pipeline.contract.atomic_io import disk_errors
from pipeline.contract.errors import NotThereYet, PipelineError

NOT_THERE_YET = {
    "search": "placement per phase; 'pipeline train --norm pre|post' trains one placement",
    "export": "a plain Hugging Face folder; a run's phases/phase-P folders load in transformers after stage2_student.register.register()",
}


class Commands(TyperGroup):
    """A group that refuses by name what the design has and this version has not."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0] in NOT_THERE_YET:
            raise NotThereYet(f"'pipeline {args[0]}': is not in this version ({NOT_THERE_YET[args[0]]})")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Distil language models from one cached teacher pass: cache-teacher once, then train as many students as you like.",
)
app.command("demo", epilog="Example: pipeline demo")(demo)
app.command("cache-teacher", epilog="Example: pipeline cache-teacher --shard fineweb-10bt")(cache_teacher)
app.command("train-teacher", epilog="Example: pipeline train-teacher --shard small-docs")(train_teacher)
app.command("pilot", epilog="Example: pipeline pilot --shard installed-docs --documents 16")(pilot)
app.command("train", epilog="Example: pipeline train --norm post --curriculum grow")(train)
app.command("evaluate", epilog="Example: pipeline evaluate demo-2x2/post-grow-seed42")(evaluate)
app.command("diagnose", epilog="Example: pipeline diagnose demo-2x2/post-grow-seed42")(diagnose)
app.command("run", epilog="Example: pipeline run demo-2x2")(run)
app.command("plan", epilog="Example: pipeline plan paper-2x2")(plan)
app.command("track", epilog="Example: pipeline track demo-2x2/post-grow-seed42 --to wandb")(track)
app.command("report", epilog="Example: pipeline report demo-2x2")(report)
app.command("watch", epilog="Example: pipeline watch demo-2x2 --serve")(watch)
app.command("doctor", epilog="Example: pipeline doctor")(doctor)
app.add_typer(shards.app, name="shards")
cache.app.info.cls = Commands
app.add_typer(cache.app, name="cache")


CONTROL_C = 130
"""What typer returns for a KeyboardInterrupt that it met first."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""Of the click that typer carries inside; typer itself exports only its children."""


def main() -> None:
    """Entry point of the console script. SIGTERM ends work as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    # deepspeed's launcher puts this before the command; LOCAL_RANK in the environment says the same
    sys.exit(run_command([argument for argument in sys.argv[1:] if not argument.startswith("--local_rank=")]))


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def run_command(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. Anything but the user's errors is a bug and keeps its traceback."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")  # our own lines say more
    try:
        with disk_errors(Path()):
            code = app(args=arguments, prog_name="pipeline", standalone_mode=False)
        return _interrupted() if code == CONTROL_C else code if isinstance(code, int) else 0
    except PipelineError as error:
        return _say(str(error))
    except UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort) as stop:
        if isinstance(stop.__cause__, EOFError):  # typer takes it for an answer at a prompt, and there is none
            raise
        return _interrupted()
    except (NotADirectoryError, IsADirectoryError, PermissionError, FileExistsError) as error:
        return _say(f"{error.filename}: {error.strerror}; give another path, or --root FOLDER")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        return _say(
            f"out of memory ({error}); lower cache.tokens_per_batch or micro_batch_tokens with --set, and run the same command again"
        )


def _interrupted() -> int:
    return _say("interrupted; what is finished is kept, run the same command again to go on")


def _usage(error: Any) -> int:
    message = error.format_message()
    if "\n" in message:  # a group without a command: the message is its help
        print(message)
        return 2
    return _say(f"{message}; see '{error.ctx.command_path if error.ctx else 'pipeline'} --help'")


def _say(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
