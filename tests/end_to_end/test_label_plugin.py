"""A plugin adds documents whose tokens have labels, and a task that learns them, without any change to trainkit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import likeness
from trainer import losses, trainkit

from trainkit.events.tail import read

PLUGIN = '''
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from trainkit.recipe.families.model import Head, Kind
from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.sections.task import TaskSpec


class Answer(DocumentSpec):
    """A question, a context and the part of the context that answers it."""

    type: Literal["answer"]

    learned_in_part: ClassVar[bool] = True
    marked: ClassVar[bool] = True
    token_labels: ClassVar[bool] = True

    @property
    def is_pair(self) -> bool:
        return True

    @property
    def form(self) -> str:
        return "answer"

    def make(self, row, index, context):
        from trainkit.data.documents.pieces import LabelledSpan, Piece, as_document

        begin = row["start"]
        # 1 in the answer, 0 elsewhere in the context, none in the question
        labels = LabelledSpan(0, len(row["context"]), 0), LabelledSpan(begin, begin + len(row["answer"]), 1)
        question = Piece(index=index, text=row["question"], bytes=len(row["question"].encode()), token_labels=())
        answer = Piece(
            index=index, text=row["context"], bytes=len(row["context"].encode()), token_labels=labels, second=True
        )
        return as_document([question, answer])


class Spans(TaskSpec):
    """Find the first and the last token of the answer."""

    type: Literal["first-and-last"]

    documents: ClassVar[frozenset[str]] = frozenset({"answer"})
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder"})
    shifted: ClassVar[bool] = False
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "exact"})

    def head(self, data):
        return Head("token", 2, ("first", "last"))

    def build(self, tokenizer) -> Any:
        import jax
        import jax.numpy as jnp

        from trainkit.tasks import Loss, Task
        from trainkit.tasks.statistics import Ratio
        from trainkit.tasks.task import segments_of

        class SpansTask(Task):
            metrics = {"exact": Ratio.zero()}

            def loss(self, model, batch, *, key):
                tokens_BT, labels_BT = batch["tokens"].astype(jnp.int32), batch["labels"]
                segments_BT = segments_of(batch, tokens_BT.shape[1])
                hidden_BTD, _ = model.hidden_and_penalty(
                    tokens_BT, segments_BT=segments_BT, types_BT=batch["second"].astype(jnp.int32)
                )
                scores_BTC = model.scores(hidden_BTD, segments_BT)
                scores_BTC = jnp.where(labels_BT[..., None] >= 0, scores_BTC, -1e9)
                answer_BT, length = labels_BT == 1, labels_BT.shape[1]
                places_BC = jnp.stack([answer_BT.argmax(1), length - 1 - answer_BT[:, ::-1].argmax(1)], 1)
                counted_B = answer_BT.any(1).astype(jnp.float32)
                likely_BTC = jax.nn.log_softmax(scores_BTC, axis=1)
                picked_BC = jnp.take_along_axis(likely_BTC, places_BC[:, None], axis=1)[:, 0]
                exact_B = (scores_BTC.argmax(1) == places_BC).all(1) * counted_B
                total = -(picked_BC.mean(1) * counted_B).sum()
                return Loss(total, counted_B.sum(), {"exact": Ratio(exact_B.sum(), counted_B.sum())})

        return SpansTask()
'''
RECIPE = """
schema = 1
[plugins]
files = ["answers.py"]
[run]
name = "tiny"
[model]
type = "bert"
layers = 1
hidden = 32
heads = 2
[tokenizer]
path = "wordpiece"
[task]
type = "first-and-last"
[data]
sequence_length = 40
held_out = 0.2
encoding = { type = "pad" }
[[data.train]]
path = "answers.jsonl"
document = { type = "answer" }
[train]
steps = 30
batch_size = 16
[optimizer]
learning_rate = 5e-3
[evaluate]
every = 30
[track]
aim = false
"""


def test_a_plugin_learns_to_find_answers_by_labels_of_tokens(tmp_path: Path) -> None:
    likeness.write("wordpiece", tmp_path / "wordpiece")
    (tmp_path / "answers.py").write_text(PLUGIN)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    chance = random.Random(0)
    with (tmp_path / "answers.jsonl").open("w") as file:
        for _ in range(300):
            before, after = (chance.choices(["the", "on", "and", "us", "sat"], k=chance.randrange(1, 7)) for _ in "ab")
            answer = chance.choice(["cat near", "dog near mat"])
            context = " ".join([*before, answer, *after])
            row = {"question": "who?", "context": context, "answer": answer, "start": len(" ".join([*before, ""]))}
            file.write(json.dumps(row) + "\n")
    done = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "tiny"
    assert losses(run)[30] < losses(run)[1] / 4
    (evaluated,) = (event["metrics"] for event in read(run) if event["type"] == "evaluated" and event["step"] == 30)
    assert evaluated["validation/held-out/exact"] > 0.9
    shown = json.loads(trainkit(tmp_path, "inspect", "tiny", "--step", "0", "--json").stdout.splitlines()[0])
    text = "".join(text for piece in shown["pieces"] for text, _ in piece["runs"])
    question, context = text.split("[SEP]")[:2]
    assert "[1]" not in question and "[0]" not in question and context.count("[1]") >= 2
