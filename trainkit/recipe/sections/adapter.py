"""[adapter]: a few numbers beside each matrix are trained instead of the matrix; which layers of a model have some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.model import Model
from trainkit.recipe.spec import PositiveRatio, Rate, Scale, Spec, Width


class Lora(Spec):
    """Low-rank adaptation (Hu et al. 2021): adds a product of two narrow matrices to each target matrix.

    The model itself does not change, so checkpoints hold only the narrow matrices.
    """

    type: Literal["lora"] = "lora"
    pretrained: str | None = None
    """A directory with an adapter in PEFT's format, or a hub id, to begin with. If absent, the adapter is new. Rank,
    alpha, targets and variant are read from its adapter_config.json and need not be given."""
    revision: str | None = None
    """Branch, tag or commit on the hub; a run keeps the commit that it resolves to."""
    rank: Width = 16
    """Width of the narrow matrices."""
    alpha: Scale = 32.0
    """The product is scaled by alpha / rank; in `rslora` by alpha / sqrt(rank)."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Linear layers by name or glob, such as `["query", "value"]`; `all-linear` means all in the blocks except routers
    of experts."""
    variant: Literal["lora", "rslora", "dora"] = "lora"
    """`rslora` keeps large ranks from learning slowly (Kalajdzievski 2023); `dora` trains the length of each column of
    a matrix separately from its direction (Liu et al. 2024)."""
    dropout: Rate = 0.0
    """Share of the inputs of the first narrow matrix that training drops."""
    learning_rate_ratio: PositiveRatio = 1.0
    """How much faster the second matrix learns than the first (LoRA+, Hayou et al. 2024, who use 16)."""
    base: Literal["none", "nf4"] = "none"
    """How the frozen matrices are stored: as `precision.params` says, or in 4 bit (QLoRA, Dettmers et al. 2023)."""

    @model_validator(mode="after")
    def _goes_with_pretrained(self) -> Lora:
        if self.pretrained is None and self.revision is not None:
            raise ValueError('revision goes with pretrained = "…"')
        return self

    @property
    def scale(self) -> float:
        """Return the factor of the product of the two matrices."""
        return self.alpha / (self.rank**0.5 if self.variant == "rslora" else self.rank)

    def check_rates(self, rules: Iterable[OptimizerSpec]) -> None:
        """Raise ValueError if one of the rules that update its matrices has a rate that it cannot scale."""
        for rule in rules:
            if rule.owns_rate:
                raise ValueError(
                    f"adapter.learning_rate_ratio = {self.learning_rate_ratio:g} cannot scale"
                    f' "{rule.type}", which has one learning rate for all parameters: leave it out'
                )


Adapter = Lora


#: Hugging Face's names of linear layers, for all families, and ours.
_FOREIGN = {
    "q_proj": ("query",), "k_proj": ("key",), "v_proj": ("value",), "o_proj": ("output",), "gate_proj": ("gate",),
    "up_proj": ("up", "mlp_in"), "down_proj": ("down", "mlp_out"), "c_attn": ("qkv",), "Wqkv": ("qkv",),
    "out_proj": ("output",), "c_fc": ("mlp_in",), "c_proj": ("output", "mlp_out"),
    "q": ("query",), "k": ("key",), "v": ("value",), "o": ("output",), "wi": ("mlp_in",), "wi_0": ("mlp_gate",),
    "wi_1": ("mlp_up",), "wo": ("mlp_out",), "fc1": ("mlp_in",), "fc2": ("mlp_out",), "EncDecAttention": ("cross.*",),
    "encoder_attn": ("cross.*",),
}  # fmt: skip


def linear_shapes(model: Model) -> dict[str, tuple[int, int, int]]:
    """Return (blocks, inputs, outputs) of the linear layers of blocks, except those of experts, by name within the
    block.

    In a model of two stacks the name begins with the stack.
    """
    shapes = model.leaf_shapes(vocab_size=1, sequence_length=1)
    layers = {name: shape for name, shape in shapes.items() if name.startswith("blocks.") and name.endswith(".weight")}
    return {
        name.removeprefix("blocks.").removesuffix(".weight"): (shape[0], shape[1], shape[2])
        for name, shape in layers.items()
        if len(shape) == 3 and "router" not in name
    }


def check_adapter(adapter: Adapter, model: Model) -> None:
    """Raise ValueError if the adapter does not fit the model."""
    if not isinstance(model, Transformer):
        raise ValueError(
            f'[adapter] is for transformers, and model.type = "{model.type}" is of kind {model.kind}: leave it out'
        )
    if adapter.base == "nf4" and model.has_experts:
        raise ValueError('adapter.base = "nf4" does not quantise experts, which are most of the model: write "none"')
    try:
        targeted_layers(adapter, list(linear_shapes(model)))
    except TrainkitError as error:
        raise ValueError(f"adapter.targets: {error.problem}; {error.hint}") from None


def targeted_layers(adapter: Adapter, names: Sequence[str]) -> list[str]:
    """Return those of `names` that match the adapter's targets, never a router of experts.

    Raises TrainkitError if a target matches none.
    """
    names = [name for name in names if "router" not in name]
    if adapter.targets == "all-linear":
        return names
    for target in adapter.targets:
        if not any(_means(target, name) for name in names):
            ours = [own for own in _FOREIGN.get(target, ()) if any(_means(own, name) for name in names)]
            called = f"it is called {' and '.join(map(repr, ours))} here; " if ours else ""
            raise TrainkitError(
                f"{target!r} matches no linear layer of this model",
                where="adapter.targets",
                hint=f'{called}there are {", ".join(names)}; or targets = "all-linear"',
            )
    return [name for name in names if any(_means(target, name) for target in adapter.targets)]


def adapter_shapes(adapter: Adapter, model: Model) -> dict[str, Shape]:
    """Return the shape of every trained parameter of the adapter by its path."""
    layers = linear_shapes(model)
    shapes: dict[str, Shape] = {}
    for name in targeted_layers(adapter, list(layers)):
        blocks, inputs, outputs = layers[name]
        shapes[f"blocks.{name}.a"] = (blocks, inputs, adapter.rank)
        shapes[f"blocks.{name}.b"] = (blocks, adapter.rank, outputs)
        if adapter.variant == "dora":
            shapes[f"blocks.{name}.magnitude.value"] = (blocks, outputs)
    return shapes


def adapter_parameters(adapter: Adapter, model: Model) -> int:
    """Return how many numbers the adapter has."""
    return sum(map(math.prod, adapter_shapes(adapter, model).values()))


def trained_shapes(model: Model, adapter: Adapter | None, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
    """Return the shape of every trained parameter by its path.

    These are the model's or, with an adapter, those of the adapter and of a head with classes.
    """
    if adapter is not None:
        head = model.head_shapes() if isinstance(model, Transformer) else {}
        return adapter_shapes(adapter, model) | head
    return model.leaf_shapes(vocab_size=vocab_size, sequence_length=sequence_length)


def quantised_parameters(model: Model) -> int:
    """Return how many parameters of the model are in 4 bit if the base is."""
    return sum(map(math.prod, linear_shapes(model).values()))


def quantised_bytes(model: Model) -> int:
    """Return the bytes of these parameters: half a byte each, one per block of 64, four per 256 blocks, twelve per
    matrix."""
    total = 0
    for blocks, inputs, outputs in linear_shapes(model).values():
        count = math.ceil(inputs * outputs / 64)
        total += blocks * (33 * count + 4 * math.ceil(count / 256) + 12)
    return total


def _means(target: str, name: str) -> bool:
    return fnmatchcase(name, target) or fnmatchcase(name, f"*.{target}")
