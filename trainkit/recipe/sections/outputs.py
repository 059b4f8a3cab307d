"""What a run writes while it trains: [checkpoint], [export], [sample], [statistics] and [track]."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from trainkit.recipe.families.model import WRITING, Head, ModelSpec
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.spec import Count, Fraction, Index, NotNegative, Spec, Temperature
from trainkit.text import plural

#: Bytes of a number in float32.
FLOAT32 = 4


class Best(Spec):
    """By which metric of the evaluations a checkpoint is the best."""

    metric: str
    """Its name as in the log: `validation/SET/NAME`."""
    mode: Literal["min", "max"]
    """Whether the lowest or the highest value is the best."""


class Checkpoint(Spec):
    """When checkpoints are saved and how many are kept. The end of a run and a stop always save one."""

    every_minutes: Annotated[float, Field(gt=0, le=1e6)] | None = 10.0
    """Minutes between rolling checkpoints; only the newest `keep_last` of them are kept."""
    keep_last: Count = 2
    """How many rolling checkpoints to keep. With 1, a single bad block on the disk can lose the whole run."""
    keep_every: Count | tuple[Count, ...] | None = None
    """Steps between permanent checkpoints, or a list of steps to save them at, such as `[1000, 2000]`. If absent, no
    rolling checkpoint becomes permanent."""
    best: Best | None = None
    """The evaluation whose checkpoint is kept beside the others, as `RUN/best`. If absent, none is."""

    @model_validator(mode="after")
    def _steps_rise(self) -> Checkpoint:
        steps = self.keep_every if isinstance(self.keep_every, tuple) else ()
        for before, after in pairwise(steps):
            if after <= before:
                raise ValueError(
                    f"checkpoint.keep_every: {after} follows {before}; list each step once, in rising order"
                )
        return self


class ChatMessage(Spec):
    """A message of a conversation."""

    role: str
    """Who speaks: `"user"`, `"system"`, `"assistant"` or another role that the chat template knows."""
    content: str
    """The text. The name of a special token in it becomes that token, as in training."""


class Sample(Spec):
    """Texts that the model writes during training."""

    every: Count | None = None
    """Steps between samples; there are always some at the end. If absent, there are no others."""
    prompts: Annotated[
        tuple[str | Annotated[tuple[ChatMessage, ...], Field(min_length=1)], ...], Field(min_length=1)
    ] = ("\n",)
    """Prompts to continue. Each is a text, or a conversation `[{ role = "user", content = "…" }]`, which the chat
    template writes as in training, up to the assistant's answer. The name of a special token becomes that token."""
    chat: bool = False
    """Whether texts, also those typed in the dashboard, are what the user says in a conversation."""
    max_tokens: Count = 100
    """Largest number of tokens to write after a prompt."""
    temperature: NotNegative = 0.8
    """What the logits are divided by. Higher is more varied; 0 always takes the likeliest token."""
    top_k: Index | None = 50
    """Draw only from this many of the likeliest tokens; 0: from all."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw only from the likeliest tokens whose probabilities together reach this share. If absent, from all."""
    min_p: Fraction | None = None
    """Draw only from tokens at least this many times as likely as the likeliest. If absent, from all."""
    repetition_penalty: Temperature = 1.0
    """Above 1, tokens that already occur in the text become less likely; 1 changes nothing."""

    @property
    def most_candidates(self) -> int | None:
        """Return from how many of the likeliest tokens one is drawn; None for all."""
        return self.top_k or None

    @property
    def has_conversations(self) -> bool:
        """Return whether a chat template is needed to write its prompts."""
        return self.chat or not all(isinstance(prompt, str) for prompt in self.prompts)

    def check_model(self, model: ModelSpec, head: Head, task: TaskSpec) -> None:
        """Raise ValueError if the model, with the head that its task gives it, does not write texts."""
        if model.kind not in WRITING or head.kind != "tokens":
            raise ValueError(
                f'sample.prompts are continued or answered, which model.type = "{model.type}" ({model.kind}) with'
                f' task.type = "{task.type}" cannot do: leave [sample] out'
            )

    def check_template(self, found: bool) -> None:
        """Raise ValueError if its prompts need a chat template and the run has none."""
        if self.has_conversations and not found:
            raise ValueError(
                f"sample.{'chat' if self.chat else 'prompts'}: a conversation needs a chat template, which"
                " tokenizer.train does not make and no document of data.train names: give prompts as texts"
            )


class Export(Spec):
    """Write the model for other programs during training, as `trainkit export` does, into the run's `exports/STEP`.

    A separate process makes each export from a checkpoint; if it fails, an alert says so and training continues.
    """

    every: Count | None = None
    """Steps between exports; there is always one at the end. If absent, there is no other."""
    format: Literal["auto", "hf", "peft"] = "auto"
    """`hf` is the whole model for transformers, with an adapter merged into its base; `peft` is the adapter alone.
    `auto` is `peft` if the recipe has an adapter, and otherwise `hf`."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Dtype of the exported weights. If absent, it is that of training. An adapter alone is always float32."""

    def check(self, model: ModelSpec, adapter: Adapter | None, *, written_as: Literal["hf", "peft"]) -> None:
        """Raise ValueError if the model, or its adapter alone, cannot be written in this format."""
        if not isinstance(model, Transformer):
            raise ValueError(
                f'[export] writes models for transformers, which cannot load model.type = "{model.type}"'
                f" ({model.kind}): remove the section"
            )
        if written_as == "hf":
            if model.not_in_transformers:
                raise ValueError(
                    f"[export] writes models for transformers, which cannot load model.{model.not_in_transformers}:"
                    " remove the section"
                )
            return
        if adapter is None:
            raise ValueError('export.format = "peft" is an adapter alone, and there is none: add [adapter]')
        if not model.predicts_tokens:
            raise ValueError(
                "[export] writes an adapter alone, without the head with classes that was trained beside it:"
                ' merge it into its base with export.format = "hf"'
            )
        if model.resize_vocabulary:
            raise ValueError(
                "[export] writes an adapter alone, which does not record a changed vocabulary"
                ' (model.resize_vocabulary): merge it into its base with export.format = "hf"'
            )
        if self.dtype == "bfloat16":
            raise ValueError(
                'export.dtype = "bfloat16" is not for an adapter alone, which is float32 as it was trained:'
                ' leave it out, or merge it into its base with export.format = "hf"'
            )


#: Groups of statistics.
StatisticName = Literal[
    "histograms", "norms", "cosines", "last-parameters", "noise-scale", "matrices", "hessian", "activations",
    "attention",
]  # fmt: skip
#: Those that need a model whose layers report what is inside them.
OF_LAYERS: tuple[StatisticName, ...] = ("activations", "attention")
#: Gradients of the batch of a step, each a forward and a backward pass, for statistics that need some.
EXTRA_PASSES: dict[StatisticName, int] = {"last-parameters": 1, "hessian": 28}


class Statistics(Spec):
    """Statistics of gradients, parameters and updates, layer by layer, in the log and the trackers."""

    every: Count | None = None
    """Steps between statistics. If absent, there are none."""
    compute: Annotated[tuple[StatisticName, ...], Field(min_length=1)] = ("histograms",)
    """Which statistics. All but `histograms`, those of the parameters, are computed inside a second version of the
    step, for the steps that are multiples of `every`. `norms` are the l1, l2 and l-infinity norms of gradients,
    parameters and updates. `cosines` are those of the gradient with the last gradient, the sum of all earlier ones and
    the last change of the parameters, and cost three copies of the trained parameters in memory. `last-parameters` are
    the loss and the gradient of the batch at the parameters before the last step, and cost another forward and backward
    pass and one copy. `noise-scale` is the gradient noise scale (McCandlish et al. 2018), from at least two
    micro-batches. `matrices` are operator and Frobenius norms of matrices and their updates, and norms of rows and
    columns of embeddings and head; each matrix is read 60 times. `hessian` is the top eigenvalue of the Hessian and its
    trace, and costs 28 forward and backward passes. `activations` are mean, root mean square and largest magnitude of
    the hidden states of each layer, the share of dead units of its MLP or experts, and the largest logit of the
    vocabulary; `attention` is the mean entropy of each layer's attention and the largest logit of it. The two share one
    more forward pass of a micro-batch."""
    per_layer: bool = True
    """Whether norms, cosines and the like are also logged for each parameter and layer, beside those of all together.
    """

    @model_validator(mode="after")
    def _are_asked_for(self) -> Statistics:
        if self.every is None and self.compute != type(self).model_fields["compute"].default:
            raise ValueError("statistics.compute without statistics.every computes nothing: set statistics.every = 10")
        return self

    @property
    def histograms_every(self) -> int | None:
        """Return the steps between histograms; None if there are none."""
        return self.every if "histograms" in self.compute else None

    @property
    def in_step(self) -> tuple[StatisticName, ...]:
        """Return the groups that a step computes, in the order of `StatisticName`."""
        wanted = self.compute if self.every is not None else ()
        return tuple(name for name in get_args(StatisticName) if name in wanted and name != "histograms")

    def state_bytes(self, trained: int, *, params: int) -> int:
        """Return the bytes of what is kept from step to step for `trained` parameters of `params` bytes each."""
        gradients = 2 * FLOAT32 if "cosines" in self.in_step else 0
        return trained * (gradients + (params if self.keeps_parameters else 0))

    @property
    def compares_micro_batches(self) -> bool:
        """Return whether a step needs at least two micro-batches."""
        return "noise-scale" in self.in_step

    def check_model(self, model: ModelSpec) -> None:
        """Raise ValueError if a statistic is of layers, and the model has none."""
        found = [name for name in OF_LAYERS if name in self.compute]
        if found and not isinstance(model, Transformer):
            raise ValueError(
                f'statistics.compute: "{found[0]}" is for transformers, and not for model.type = "{model.type}"'
                f" ({model.kind}): leave it out"
            )

    def in_words(self) -> str:
        """Return what steps compute, and how many more gradients that takes; empty if nothing."""
        passes = sum(EXTRA_PASSES.get(name, 0) for name in self.in_step)
        cost = f", with {plural(passes, 'gradient')} more" if passes else ""
        return f"{', '.join(self.in_step)} every {plural(self.every or 0, 'step')}{cost}" if self.in_step else ""

    @property
    def probes_layers(self) -> bool:
        """Return whether a step needs a forward pass whose layers report what is inside them."""
        return bool(set(OF_LAYERS).intersection(self.in_step))

    @property
    def keeps_parameters(self) -> bool:
        """Return whether the parameters before the last step are kept."""
        return bool({"cosines", "last-parameters"}.intersection(self.in_step))


class WandB(Spec):
    """Settings of the tracker W&B."""

    mode: Literal["offline", "online"] = "offline"
    """`"offline"` writes files into the run's directory, for `wandb sync`; `"online"` sends them during training."""
    project: str = "trainkit"
    """The W&B project that lists the run."""
    entity: str | None = None
    """The user or team that owns the project. If absent, it is your own account."""


class Track(Spec):
    """Experiment trackers. A separate process feeds each; if it fails, an alert says so and training continues."""

    aim: bool = True
    """Whether to copy the run's events to Aim."""
    repository: str = "."
    """Directory that holds the Aim repository, `.aim`."""
    experiment: str = "trainkit"
    """The Aim experiment that lists the run."""
    tensorboard: bool = False
    """Whether to write them for TensorBoard into the run's `tensorboard/`. Needs the extra `tensorboard`."""
    wandb: bool | WandB = False
    """Whether to write them for W&B: a boolean, or a table such as `{ mode = "online", project = "mine" }`. Needs the
    extra `wandb`."""
