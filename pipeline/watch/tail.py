"""A growing file of lines, read on from where the last look ended."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class Tail:
    """Whole lines of a file, each once; a torn last line waits until it is whole.

    A resumed run rewrites its metrics.jsonl without what it will do again. Where the last line that was read still stands at its place,
    all before it stands too, and reading goes on; else the file is another one by now and is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._last = path, 0, b""

    def follow(self, take: Callable[[bytes], None], restart: Callable[[], None]) -> None:
        """Give every new line to `take`; `restart` is called first where all lines given so far no longer count."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._start_again(restart)
            return
        with file:
            if not self._goes_on(file):
                self._start_again(restart)
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset, self._last = self._offset + len(line), line
                take(line)

    def unread(self) -> int:
        """Bytes behind the last line that was read."""
        try:
            return max(0, self._path.stat().st_size - self._offset)
        except OSError:
            return 0

    def _goes_on(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._last))
        return file.read(len(self._last)) == self._last

    def _start_again(self, restart: Callable[[], None]) -> None:
        if self._offset:
            self._offset, self._last = 0, b""
            restart()
