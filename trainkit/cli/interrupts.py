"""What Ctrl-C means to a conversation: the end of an answer, or of a line that is being typed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Between two tries to make Python hear a Ctrl-C, in seconds.
AGAIN = 0.05


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While it lasts, the first Ctrl-C is only remembered, so that it hits nothing in its middle; a second one does."""
    hits: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        hits.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(hits)
    finally:
        signal.signal(signal.SIGINT, before)


def ask(prompt: str) -> str:
    """A line from the terminal; a Ctrl-C is a KeyboardInterrupt at once, and only one.

    `input` with readline sleeps until a key comes or a signal wakes the main thread. One that comes just before it
    sleeps, or that the system gives to another thread, is remembered and heard with the next key. So a thread of ours
    reads of signals where Python writes that there was one, and says it again to the main thread until that has heard.
    """
    heard, main = threading.Event(), threading.get_ident()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def insist() -> None:
        while number := os.read(reader, 1):
            while number[0] == signal.SIGINT and not heard.wait(AGAIN):
                signal.pthread_kill(main, signal.SIGINT)

    before, woken = signal.signal(signal.SIGINT, interrupt), signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=insist, daemon=True)
    thread.start()
    try:
        try:
            return input(prompt)
        finally:
            heard.set()
    finally:
        signal.set_wakeup_fd(woken)
        os.close(writer)
        thread.join()
        os.close(reader)
        signal.signal(signal.SIGINT, before)
