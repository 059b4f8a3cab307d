"""What a model of ours makes of the tokens that the reference was given, by the same names, and how far apart it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from trainkit import models
from trainkit.hub import safetensors
from trainkit.hub.config import family_of, head_of, read_config
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.infer.generate import generate
from trainkit.infer.sampling import Sampling
from trainkit.models.loss import blocked_cross_entropy
from trainkit.recipe.sections.task import MaskedLM
from trainkit.tasks.masked_lm import MaskedLMTask, MaskedTokens

Found = dict[str, np.ndarray]
#: Largest difference over the largest number: of logits; of loss and gradients, where logits are of rows alone.
NEAR, NEAR_LOSS = 1e-4, 1e-5
#: What the reference is asked, beside a seed and the size of the tokens: where late positions begin, how much of the
#: first row is padding where it is padded, how many tokens are answered.
ASKED = {"late": 150, "padded": 7, "greedy": 6}
#: The same of models with an encoder: how much padding the first row has at its end, and the second at its beginning.
ASKED_OF_ENCODERS = {"padded": 5}
#: The arrays that the reference was given, which it returns beside what it makes of them.
GIVEN = ("tokens", "mask", "sources", "labels")
GRADIENT = "gradient/"
#: These programs run once: without what makes them fast they are compiled in a quarter of the time.
_compiled = eqx.filter_jit(compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False})


def drawn(*strategies: st.SearchStrategy[Any]) -> Sequence[Any]:
    """Return an example of each strategy, the same ones in every run. They are not the simplest ones, which are near
    the fixtures."""
    found: list[Sequence[Any]] = []

    @settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.tuples(*strategies))
    def collect(example: Sequence[Any]) -> None:
        found.append(example)

    collect()
    return found[-1]


def ours(directory: Path, tokens: np.ndarray, *, late: int, padded: int, greedy: int) -> Found:
    """Of the checkpoint in `directory`, in float32: what `torch_worker.look` gives."""
    model, (rows, length) = _read(directory), tokens.shape
    counted, real = np.arange(length), np.arange(length) < length - padded
    # below the rows themselves the first one again: late, padded at the right, padded at the left
    positions = [*[counted] * rows, late + counted, counted, np.maximum(counted - padded, 0)]
    segments = [*[np.ones(length)] * (rows + 1), real, real[::-1]]
    ids = np.concatenate([tokens, *[tokens[:1]] * 3])
    (loss, logits), gradients = _trained(model, *(jnp.asarray(each, jnp.int32) for each in (ids, positions, segments)))
    late_logits, right, left = np.asarray(logits[rows:])
    # generation takes its padding at the right
    prompts = np.concatenate([np.roll(tokens[:1], -padded, 1), tokens[1:]])
    lengths = np.array([length - padded] + [length] * (rows - 1))
    return {
        "logits": np.asarray(logits[:rows]),
        "late_logits": late_logits,
        "right_padded_logits": right[real],
        "left_padded_logits": left[real[::-1]],
        "greedy": np.asarray(_greedy(model, jnp.asarray(prompts), jnp.asarray(lengths), greedy)),
        "loss": np.asarray(loss),
        **_as_tensors(directory, model, gradients),
    }


def ours_of(directory: Path, given: Found, asked: dict[str, int]) -> Found:
    """What the model in a directory, of any kind, makes of what the reference was given."""
    kind = read_spec(directory).kind
    if kind == "causal":
        return ours(directory, given["tokens"], **asked)
    return (_ours_of_encoder if kind == "encoder" else _ours_of_encoder_decoder)(directory, given)


class _Typed(eqx.Module):
    """An encoder that is told the types of tokens as the reference is, which batches of plain text do not have."""

    model: Any
    types_BT: Array | None

    def hidden_states(self, tokens_BT: Array, **more: Any) -> Array:
        hidden_BTD: Array = self.model.hidden_states(tokens_BT, types_BT=self.types_BT, **more)
        return hidden_BTD

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _ours_of_encoder(directory: Path, given: Found) -> Found:
    """Logits of real tokens, and the loss of every third of them by the task."""
    spec, mask = read_spec(directory), given["mask"]
    tokens, segments = (jnp.asarray(given[name], jnp.int32) for name in ("tokens", "mask"))
    length = mask.shape[1]
    # RoBERTa counts tokens that are no padding; the others count all, or know distances alone
    counted = np.maximum(mask.cumsum(1) - 1, 0) if spec.type == "roberta" else np.arange(length)
    batch = {"tokens": tokens, "segments": segments, "positions": jnp.asarray(np.broadcast_to(counted, mask.shape))}
    weights = jnp.asarray((np.arange(length) % 3 == 0) * mask, jnp.float32)
    types = jnp.broadcast_to(jnp.arange(length) * spec.type_rows // length, mask.shape) if spec.type_rows else None
    task = MaskedLMTask(MaskedLM(type="masked-lm"), vocab_size=spec.vocab_size, mask=4)

    @_compiled
    @eqx.filter_value_and_grad(has_aux=True)
    def trained(model: Any) -> tuple[Array, Array]:
        typed = _Typed(model, types)
        found = task.loss_of(typed, batch, MaskedTokens(tokens, weights))
        hidden = typed.hidden_states(tokens, segments_BT=segments, positions_BT=batch["positions"])
        return found.sum / found.weight, model.logits(hidden)

    model = _read(directory)
    (loss, logits), gradients = trained(model)
    found = {"logits": np.asarray(logits)[mask > 0], "loss": np.asarray(loss)}
    return found | _as_tensors(directory, model, gradients)


def _ours_of_encoder_decoder(directory: Path, given: Found) -> Found:
    """Logits and loss of targets that are no padding."""
    spec, real = read_spec(directory), given["labels"] >= 0
    sources, segments, labels = (jnp.asarray(given[name], jnp.int32) for name in ("sources", "mask", "labels"))
    inputs = jnp.roll(jnp.maximum(labels, 0), 1, axis=1).at[:, 0].set(spec.decoder_start)

    @_compiled
    @eqx.filter_value_and_grad(has_aux=True)
    def trained(model: Any) -> tuple[Array, Array]:
        hidden = model.decode(inputs, model.encode(sources, segments), segments)
        total, weight = blocked_cross_entropy(
            model.prediction_states(hidden), model.output_matrix(), jnp.maximum(labels, 0), labels >= 0
        )
        return total / weight, model.logits(hidden)

    model = _read(directory)
    (loss, logits), gradients = trained(model)
    found = {"logits": np.asarray(logits)[real], "loss": np.asarray(loss)}
    return found | _as_tensors(directory, model, gradients)


def far_of(found: Found, expected: Found) -> dict[str, float]:
    """What is not as the reference of a model with an encoder has it, and by how much."""
    assert found.keys() == expected.keys() - set(GIVEN)
    apart = differences(found, expected)
    return {name: much for name, much in apart.items() if not much < (NEAR if name == "logits" else NEAR_LOSS)}


def exported_again(directory: Path) -> Path:
    """An export of the checkpoint in a directory, whose tensors are the same bit for bit; it lies within."""
    out, spec = directory / "out", read_spec(directory)
    out.mkdir()
    save(out, _read(directory), spec, dtype="float32", sequence_length=64)
    assert read_spec(out) == spec
    written, kept = safetensors.open_directory(out), safetensors.open_directory(directory)
    assert written.keys() == kept.keys()
    assert all(written.view(name).tobytes() == kept.view(name).tobytes() for name in kept)
    return out


def differences(found: Found, expected: Found) -> dict[str, float]:
    """Of logits and the loss each by its name, of the largest number there; of gradients of the largest in any."""
    apart = {name: _apart(found[name], expected[name]) for name in expected if name.endswith(("logits", "loss"))}
    theirs = {name: numbers for name, numbers in expected.items() if name.startswith(GRADIENT)}
    largest = max((np.abs(numbers).max() for numbers in theirs.values()), default=0)
    return apart | {name: _apart(found[name], numbers, largest) for name, numbers in theirs.items()}


def _apart(found: np.ndarray, expected: np.ndarray, largest: float | None = None) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.abs(found.astype(np.float64) - expected).max() / (largest or np.abs(expected).max()))


def _read(directory: Path) -> Any:
    spec = read_spec(directory)
    shapes = eqx.filter_eval_shape(
        lambda key: models.build(
            spec, vocab_size=spec.vocab_size, sequence_length=1, implementation="blockwise", key=key
        ),
        jax.random.key(0),
    )  # fmt: skip
    return load_params(directory, shapes, dtype=jnp.float32, head=spec.head)


@_compiled
def _trained(model: Any, tokens: Array, positions: Array, segments: Array) -> tuple[tuple[Array, Array], Any]:
    """(mean loss of the first rows' tokens but their first, logits of all), gradients. Routing adds nothing."""
    rows = len(tokens) - 3

    def loss(model: Any) -> tuple[Array, Array]:
        hidden, _ = model.hidden_states(tokens, positions_BT=positions, segments_BT=segments)
        targets, weights = jnp.roll(tokens, -1, axis=1), jnp.zeros(tokens.shape).at[:rows, :-1].set(1)
        unembedding, softcap = model.output_matrix(), model.final_softcap
        total, weight = blocked_cross_entropy(hidden, unembedding, targets, weights, softcap=softcap)
        return total / weight, model.logits(hidden)

    return eqx.filter_value_and_grad(loss, has_aux=True)(model)


@_compiled
def _greedy(model: Any, prompts: Array, lengths: Array, count: int) -> Array:
    keys = jax.random.split(jax.random.key(0), len(prompts))
    return generate(model, prompts, lengths, keys, new_tokens=count, sampling=Sampling(temperature=0))


def _as_tensors(directory: Path, model: Any, gradients: Any) -> Found:
    """Gradients, cut into the tensors of the checkpoint."""
    config = read_config(directory)
    family = family_of(config, where="")
    leaves = dict(zip(jax.tree.leaves(models.leaf_names(model)), jax.tree.leaves(gradients), strict=True))
    found = {}
    for name in family.names_of(head_of(config, family).kind).values():
        if name.ours in leaves:
            leaf = np.asarray(leaves[name.ours])
            for at, tensor in name.places(leaf.shape):
                found[GRADIENT + tensor] = leaf[at].T if name.transposed else leaf[at]
    return found
