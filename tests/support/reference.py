"""transformers on torch as the reference, in a process of its own: the Python that `TRAINKIT_TORCH` names, or the one
that `.ci/run` has made in `.venv-torch`. Where there is none, the tests that need it say that they were not run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT, SUPPORT

#: How many tokens at the end of the first row of an encoder's batch are padding.
PADDED = 5
#: A text, or the messages of a conversation.
Prompt = str | list[dict[str, str]]
WHY = "no torch to compare with: `TRAINKIT_TORCH` names no Python that has it, and there is no .venv-torch"


def torch_python() -> Path:
    return Path(os.environ.get("TRAINKIT_TORCH", ROOT / ".venv-torch" / "bin" / "python"))


class Reference:
    """One process, asked as often as there is something to compare."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(SUPPORT / "torch_worker.py")]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def make(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """A checkpoint in `directory`, and what the reference makes of it, by name: see `torch_worker.look`."""
        self._ask(do="make", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "reference.npz"))

    def make_encoder(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """As `make`, of a masked language model: see `torch_worker.make_encoder`."""
        self._ask(do="make_encoder", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "reference.npz"))

    def make_encoder_decoder(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """As `make`, of an encoder-decoder: see `torch_worker.make_encoder_decoder`."""
        self._ask(do="make_encoder_decoder", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "reference.npz"))

    def reads_as(self, directory: Path, made: Path) -> bool:
        """Whether an export gives the logits of the model that it was made from: see `read_again`."""
        return bool(self._ask(do="read_again", directory=str(directory), made=str(made))["same"])

    def write(self, directory: Path, **asked: Any) -> dict[str, Any]:
        """Return the targets that an encoder-decoder writes: see `torch_seq2seq.write`."""
        return self._ask(do="write", directory=str(directory), **asked)

    def score_targets(self, directory: Path, pairs: Sequence[tuple[str, str]]) -> list[list[Any]]:
        """Return the log-likelihood of each target after its source, and whether it is greedy."""
        found: list[list[Any]] = self._ask(do="score_targets", directory=str(directory), pairs=list(pairs))["found"]
        return found

    def learn(self, directory: Path, **asked: Any) -> dict[str, np.ndarray]:
        """Return the loss and the gradients of an encoder-decoder: see `torch_seq2seq.learn`."""
        self._ask(do="learn", directory=str(directory), **asked)
        return dict(np.load(directory / "learned.npz"))

    def make_classifier(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """As `make`, of a model with a head of classes: see `torch_worker.make_classifier`."""
        self._ask(do="make_classifier", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "reference.npz"))

    def classify(self, directory: Path, texts: Sequence[Any], *, head: str) -> dict[str, Any]:
        """Return what the checkpoint in `directory` makes of texts: see `torch_worker.classify`."""
        return self._ask(do="classify", directory=str(directory), texts=list(texts), head=head)

    def make_answerer(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """As `make`, of a model that answers questions: see `torch_answers.make_answerer`."""
        self._ask(do="make_answerer", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "reference.npz"))

    def find_answers(self, directory: Path, pairs: Sequence[tuple[str, str]], *, longest: int) -> list[dict[str, Any]]:
        """Return the answers to questions about contexts: see `torch_answers.find_answers`."""
        asked = {"directory": str(directory), "pairs": list(pairs), "longest": longest}
        found: list[dict[str, Any]] = self._ask(do="find_answers", **asked)["found"]
        return found

    def rescore(self, directory: Path, **asked: Any) -> dict[str, Any]:
        """Return scores and loss of the checkpoint in `directory`: see `torch_worker.rescore`."""
        return self._ask(do="rescore", directory=str(directory), **asked)

    def metrics(self, **asked: Any) -> dict[str, float]:
        """Return what scikit-learn makes of predictions: see `torch_worker.metrics`."""
        found: dict[str, float] = self._ask(do="metrics", **asked)["found"]
        return found

    def entities(self, label: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
        """Return seqeval's F1 of each type of entities, and of the averages, by name."""
        found: dict[str, float] = self._ask(do="entities", label=label, predicted=predicted)["found"]
        return found

    def answer(self, directory: Path, prompts: Sequence[Prompt], *, tokens: int) -> dict[str, Any]:
        """How the checkpoint in `directory` goes on with each prompt: see `torch_worker.answer`."""
        return self._ask(do="answer", directory=str(directory), prompts=list(prompts), tokens=tokens)

    def keys(self, families: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By family the keys of its config class and their defaults."""
        found: dict[str, dict[str, Any]] = self._ask(do="keys", families=list(families))["keys"]
        return found

    def inert(self, config: dict[str, Any], changes: dict[str, Any], *, kind: str) -> float:
        """Return how much the logits in training of a model of this kind change where the config has these changes."""
        return float(self._ask(do="inert", config=config, changes=changes, kind=kind)["difference"])

    def loads(self, directory: Path, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Logits of the checkpoint in `directory`, and its config as it was read."""
        config = self._ask(do="loads", directory=str(directory), tokens=tokens.tolist())["config"]
        return np.load(directory / "logits.npy"), config

    def learned(self, directory: Path, conversations: Sequence[Prompt]) -> list[dict[str, Any]]:
        """The tokens of each conversation, and which of them are learned: see `torch_worker.learned`."""
        found: list[dict[str, Any]] = self._ask(
            do="learned", directory=str(directory), conversations=list(conversations)
        )["found"]
        return found

    def tagged(self, directory: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The ids and labels of the words of each row: see `torch_worker.tagged`."""
        found: list[dict[str, Any]] = self._ask(do="tagged", directory=str(directory), rows=list(rows))["found"]
        return found

    def pairs(self, directory: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What trl makes of rows of preferences: see `torch_worker.pairs`."""
        found: list[dict[str, Any]] = self._ask(do="pairs", directory=str(directory), rows=list(rows))["found"]
        return found

    def prefer(self, directory: Path, **asked: Any) -> dict[str, np.ndarray]:
        """What trl makes of pairs with the checkpoint in `directory`: see `torch_worker.prefer`."""
        self._ask(do="prefer", directory=str(directory), **asked)
        return dict(np.load(directory / "preferred.npz"))

    def reward(self, directory: Path, config: dict[str, Any], **asked: Any) -> dict[str, np.ndarray]:
        """What trl makes of pairs with a model of one score: see `torch_rewards.reward`."""
        self._ask(do="reward", directory=str(directory), config=config, **asked)
        return dict(np.load(directory / "rewarded.npz"))

    def kto(self, directory: Path, **asked: Any) -> dict[str, np.ndarray]:
        """What trl makes of judged answers with the checkpoint in `directory`: see `torch_rewards.kto`."""
        self._ask(do="kto", directory=str(directory), **asked)
        return dict(np.load(directory / "judged.npz"))

    def smoothed(self, directory: Path, **asked: Any) -> dict[str, np.ndarray]:
        """The gradient of a smoothed loss with a z-loss: see `torch_worker.smoothed`."""
        self._ask(do="smoothed", directory=str(directory), **asked)
        return dict(np.load(directory / "smoothed.npz"))

    def embed(self, directory: Path, texts: Sequence[str], **base: str) -> dict[str, Any]:
        """Return the mean of the hidden states of each text, its ids and their number: see `torch_worker.embed`."""
        return self._ask(do="embed", directory=str(directory), texts=list(texts), **base)

    def descend(self, directory: Path, optimizers: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the parameters where torch's optimizers end: see `torch_optimizers.descend`."""
        self._ask(do="descend", directory=str(directory), optimizers=optimizers)
        return dict(np.load(directory / "descended.npz"))

    def schedules(self, schedules: dict[str, Any], *, steps: int) -> dict[str, list[float]]:
        """Return the rates of torch's and transformers' schedules: see `torch_optimizers.schedule`."""
        rates: dict[str, list[float]] = self._ask(do="schedule", schedules=schedules, steps=steps)["rates"]
        return rates

    def has(self, package: str) -> bool:
        """Whether the reference's Python has a package."""
        return bool(self._ask(do="has", package=package)["found"])

    def versions(self) -> dict[str, str]:
        return self._ask(do="versions")

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it has ended"}')
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    python = torch_python()
    if not python.exists():
        pytest.skip(WHY)
    process = Reference(python)
    yield process
    process.close()
