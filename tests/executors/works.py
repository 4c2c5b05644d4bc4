"""Work for executors, importable where it runs, and light: nothing heavy is loaded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline.contract.errors import RunError
from pipeline.executors.devices import device_share


def say(words, send):
    for word in words:
        send(word)


def refuse(send):
    send("begun")
    raise RunError("mend this")


def tell_devices(send):
    send((os.environ["CUDA_VISIBLE_DEVICES"], device_share()))


def break_down(send):
    raise ZeroDivisionError("at\nonce")


def die_until(folder: Path, times: int, send):
    """Killed for the first `times` times; then a file says that it is done."""
    mark = folder / f"try-{len(list(folder.glob('try-*')))}"
    mark.touch()
    if len(list(folder.glob("try-*"))) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "done").touch()


def count_neighbours(folder: Path, send):
    """Leaves a file that says how many work in `folder` at once, itself included, after the others had time to come."""
    here = folder / f"at-work-{os.getpid()}"
    here.touch()
    time.sleep(2)
    (folder / f"saw-{os.getpid()}").write_text(str(len(list(folder.glob("at-work-*")))))
    here.unlink()


def work_for_ever(folder: Path, send):
    """Leaves a file when it is told to end in the midst."""
    try:
        send(os.getpid())
        time.sleep(600)
    finally:
        (folder / f"dropped-{os.getpid()}").touch()


def start_a_process(send):
    send(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout.strip())


class Deaf:
    """Swallows what is raised in it, as any `__del__` does."""

    def __init__(self, folder: Path, send):
        self.folder, self.send = folder, send

    def __del__(self):
        self.send("deaf")
        while not (self.folder / "told").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        self.send("heard nothing")


def be_deaf_first(folder: Path, send):
    """Told to end while it cannot be interrupted; then it works for ever."""
    Deaf(folder, send)
    time.sleep(600)


def drop_slowly(folder: Path, send):
    """To drop what it has in hand takes longer than the next signals do to come."""
    try:
        send("begun")
        time.sleep(600)
    finally:
        time.sleep(1.5)
        (folder / "dropped").touch()
