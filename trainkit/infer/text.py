"""Tokens as text while they arrive: what has been said once is never taken back."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.infer.generate import TextCodec

#: Tokens of the prompt that are decoded along, since some tokenizers write the first word of a text differently.
CONTEXT = 8


class Transcript:
    """The text of one sequence.

    Characters whose bytes are not all there wait until they are; so does what may be the beginning of a stop string.
    The stop string that is complete first ends the text, and is no part of it.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int], *, stop: Sequence[str] = ()) -> None:
        self._codec, self._stop = codec, tuple(stop)
        self._context = list(prompt)[-CONTEXT:]
        self._before = codec.decode(self._context)
        self._ids: list[int] = []
        self.text = ""
        """What has been said."""
        self.stopped = False
        """Whether a stop string was found."""

    @property
    def may_stop(self) -> bool:
        """Whether there are stop strings."""
        return bool(self._stop)

    def add(self, ids: Sequence[int], *, last: bool = False) -> str:
        """What can be said now that was not before; with `last` nothing waits any longer."""
        if self.stopped:
            return ""
        self._ids += ids
        text = self._decoded()
        # that which is complete first counts, so that it is the same however many tokens come at a time
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            text = text[: min(found)[1]]
        elif not last:
            # bytes that are no character yet
            text = text.rstrip("\ufffd")
            text = text[: len(text) - max((_begun(text, stop) for stop in self._stop), default=0)]
        if not text.startswith(self.text):
            # some tokenizers write what came before differently while the bytes of a character are coming in
            return ""
        new, self.text = text[len(self.text) :], text
        return new

    def _decoded(self) -> str:
        return self._codec.decode(self._context + self._ids)[len(self._before) :]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the first of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
