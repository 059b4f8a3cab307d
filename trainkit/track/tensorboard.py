"""A run as TensorBoard's event files. Needs tensorboardX, and no TensorFlow; only here is it imported.

| log                             | TensorBoard                                                                  |
|---------------------------------|------------------------------------------------------------------------------|
| `step`, `evaluated`             | scalars, by path                                                             |
| `distributions`                 | histograms, by path                                                          |
| `sampled`                       | text `samples/1`, `samples/2`, …: one for each prompt, in order of appearance |
| the resolved recipe             | text `recipe`, and hyperparameters by dotted key                             |
| which trial of a sweep it is    | text `sweep`                                                                 |
"""

from __future__ import annotations

import os
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event as Record
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary
from tensorboardX.record_writer import RecordWriter

from trainkit.events.schema import Event
from trainkit.track import projections
from trainkit.track.projections import Distribution, TrackerProgress

#: In the run's directory, so that `tensorboard --logdir runs` lists every run by its name.
DIRECTORY = "tensorboard"


class TensorBoard:
    """An event file can only grow, so each start writes a new one: two starts write the same points once."""

    def __init__(self, run_directory: Path) -> None:
        directory = run_directory / DIRECTORY
        directory.mkdir(exist_ok=True)
        before = list(directory.glob("events.out.tfevents.*"))
        # names sort by time: a TensorBoard that is open goes on to the newest
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.progress = TrackerProgress(run=run_directory.resolve().name, repository=str(directory.resolve()))
        self._recipe = run_directory / "recipe.toml"
        self._prompts: dict[str, int] = {}
        self._file = RecordWriter(str(directory / name))
        self._put(Record(wall_time=time.time(), file_version="brain.Event:2"))
        # it then forgets what it has read of the files before
        self._put(Record(wall_time=time.time(), step=0, session_log=SessionLog(status=SessionLog.START)))
        for path in before:
            path.unlink()

    def set_recipe(self, recipe: dict[str, Any]) -> None:
        if not recipe:
            return
        text = summary.text("recipe", _verbatim(self._recipe.read_text(encoding="utf-8")))
        hyperparameters = summary.hparams(dict(projections.flat(recipe)), {"train/loss": None})
        for part in (text, *hyperparameters):
            self._put(Record(wall_time=time.time(), step=0, summary=part))

    def set_sweep(self, sweep: dict[str, Any]) -> None:
        lines = "\n".join(f"{key} = {value}" for key, value in projections.flat(sweep))
        self._put(Record(wall_time=time.time(), step=0, summary=summary.text("sweep", _verbatim(lines))))

    def write(self, event: Event) -> None:
        values = [Summary.Value(tag=path, simple_value=value) for path, value in projections.metrics(event).items()]
        values += [
            Summary.Value(tag=path, histo=_histogram(it)) for path, it in projections.distributions(event).items()
        ]
        if event["type"] == "sampled":
            number = self._prompts.setdefault(event["prompt"], len(self._prompts) + 1)
            markdown = f"{_verbatim(event['prompt'])}\n\n---\n\n{_verbatim(event['text'])}"
            values += summary.text(f"samples/{number}", markdown).value
        if values:
            self._put(Record(wall_time=event["t"], step=event["step"], summary=Summary(value=values)))

    def forget_beyond(self, step: int) -> bool:
        return False

    def close(self) -> None:
        self._file.close()

    def _put(self, record: Record) -> None:
        self._file.write(record.SerializeToString())
        self._file.flush()


def _verbatim(text: str) -> str:
    """Text as it is, in the Markdown that TensorBoard shows."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _histogram(it: Distribution) -> HistogramProto:
    """Of a bin only its borders are known: its values count as if all were in its middle."""
    middles = [(low + high) / 2 for low, high in pairwise(it.edges())]
    return HistogramProto(
        min=it.low,
        max=it.high,
        num=sum(it.counts),
        sum=sum(count * middle for count, middle in zip(it.counts, middles, strict=True)),
        sum_squares=sum(count * middle**2 for count, middle in zip(it.counts, middles, strict=True)),
        bucket_limit=it.edges()[1:],
        bucket=it.counts,
    )
