"""[checkpoint], [export], [evaluate], [sample], [statistics] and [track]: what happens beside the steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainkit.recipe.spec import Count, Fraction, NotNegative, Positive, Spec


class Checkpoint(Spec):
    """A final checkpoint is written whatever is said here."""

    every_minutes: Positive | None = 10.0
    """Rolling: of these only the newest `keep_last` stay."""
    keep_last: Count = 2
    """Rolling checkpoints that stay. With 1 a single flipped bit on the disk can cost all of the run."""
    keep_every: Count | tuple[Count, ...] | None = None
    """Permanent: every so many steps, or at the listed steps."""


class Export(Spec):
    """The model for other programs, at these steps and at the end, as `trainkit export` writes it, into the run's
    `exports/STEP`. Each is made from a checkpoint by a process of its own, whose failure is an alert and stops nothing.
    """

    every: Count | None = None
    """Steps from one export to the next; only at the end where not given."""
    format: Literal["auto", "hf", "peft"] = "auto"
    """`hf` is what transformers loads, an adapter merged into its base; `peft` is the adapter alone. `auto` is `peft`
    where there is an adapter."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Of the weights; where not given as in training. An adapter alone is float32."""


class Evaluate(Spec):
    """Every validation set, at these steps and at the end."""

    every: Count | None = None
    """Steps from one evaluation to the next; only at the end where not given."""
    batch_size: Count | None = None
    """Sequences at once. Where not given a batch is `train.batch_size`, gone through in as many parts as in a step."""
    max_batches: Count | None = None
    """Evaluate a random sample of so many batches of each set, whatever the parts: the same sample all through the run
    and on resume, drawn by `run.seed`. All of it where not given."""


class ChatMessage(Spec):
    role: str
    """Who says it, such as `"user"`, `"system"` or `"assistant"`."""
    content: str
    """What is said; the name of a special token is that token, as in training."""


class Sample(Spec):
    """Text from the model as it is now, at these steps and at the end."""

    every: Count | None = None
    """Steps from one sample to the next; only at the end where not given."""
    prompts: Annotated[
        tuple[str | Annotated[tuple[ChatMessage, ...], Field(min_length=1)], ...], Field(min_length=1)
    ] = ("\n",)
    """Each is continued: a text, or a conversation, `[{ role = "user", content = "…" }]`, which the chat template
    writes as in training, up to where the assistant answers. The name of a special token in it is that token."""
    chat: bool = False
    """Whether a prompt that is a text is what the user says in a conversation, as is one typed in the dashboard."""
    max_tokens: Count = 100
    """Tokens to continue with, at most."""
    temperature: NotNegative = 0.8
    """0 always takes the likeliest token."""
    top_k: Count | None = 50
    """Only the likeliest so many are drawn from."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only the likeliest are drawn from that have so much probability together."""
    min_p: Fraction | None = None
    """Only those are drawn from that are at least this many times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Above 1, tokens that were there before become less likely."""

    @property
    def has_conversations(self) -> bool:
        """Whether it takes a chat template to write its prompts."""
        return self.chat or not all(isinstance(prompt, str) for prompt in self.prompts)


class Statistics(Spec):
    """How the parameters are distributed, layer by layer: histograms in the log, and from there in the trackers."""

    every: Count | None = None
    """Steps from one look to the next; none where not given."""


class WandB(Spec):
    mode: Literal["offline", "online"] = "offline"
    """`"offline"` writes files below the run's directory, for `wandb sync`; `"online"` sends as it goes."""
    project: str = "trainkit"
    """Under which W&B lists the run."""
    entity: str | None = None
    """Whose project it is; your own where not given."""


class Track(Spec):
    """Trackers; each is brought up to date by a process of its own, whose failure is an alert and stops nothing."""

    aim: bool = True
    """Copy the run's events into Aim."""
    repository: str = "."
    """Directory of the Aim repository (`.aim` is made in it)."""
    experiment: str = "trainkit"
    """Under which Aim lists the run."""
    tensorboard: bool = False
    """Write them for TensorBoard, into `tensorboard/` in the run's directory. Needs the extra `tensorboard`."""
    wandb: bool | WandB = False
    """Write them for W&B: true, or a table such as `{ mode = "online", project = "mine" }`. Needs the extra `wandb`."""
