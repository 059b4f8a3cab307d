"""What statistics see inside a model: layers report values to whoever probes a forward pass, and nothing otherwise.

Values are reported while the pass is traced, so that a pass that is not probed is the same program as if there were no
reports. Shapes as in `attention.py`; F units of an MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

#: Values by path, such as `activations/rms`, and by part of the model, such as `blocks.hidden`: (L,) of stacked
#: layers, a scalar otherwise.
Reports = dict[str, dict[str, Array]]


@dataclass
class _Probe:
    counted_BT: Array | None = None
    """The tokens that are no padding; None where the layers know it by their segments."""
    attention: str = "attention"
    """What the attention that is being traced is called."""
    reports: Reports = field(default_factory=dict)

    def add(self, path: str, part: str, value: Array) -> None:
        self.reports.setdefault(path, {})[part] = value


_PROBE: ContextVar[_Probe | None] = ContextVar("probe", default=None)


@contextmanager
def collect_reports() -> Iterator[Reports]:
    """Probe the forward passes of a block: the dictionary receives what their layers report, the last pass if several
    do."""
    with _use(_Probe()) as probe:
        yield probe.reports


@contextmanager
def mark_tokens(counted_BT: Bool[Array, "B T"] | None) -> Iterator[None]:
    """Say for a block which tokens are no padding; None if the segments of its layers say it."""
    probe = _PROBE.get()
    if probe is None or counted_BT is None:
        yield
    else:
        with _use(replace(probe, counted_BT=counted_BT)):
            yield


@contextmanager
def attention_named(name: str) -> Iterator[None]:
    """Report the attention of a block by another name, where a layer has two of them."""
    probe = _PROBE.get()
    if probe is None:
        yield
    else:
        with _use(replace(probe, attention=name)):
            yield


@contextmanager
def one_layer(segments_BT: Int[Array, "B T"] | None) -> Iterator[Reports]:
    """Collect what one layer of a scan reports, since that must leave the scan as a result of it."""
    outer = _PROBE.get()
    if outer is None:
        yield {}
        return
    counted_BT = outer.counted_BT
    if counted_BT is None and segments_BT is not None:
        counted_BT = segments_BT > 0
    with _use(replace(outer, counted_BT=counted_BT, reports={})) as inner:
        yield inner.reports


def report_layers(stack: str, reports: Reports) -> None:
    """Report what the layers of a stack have reported, arrays (L,)."""
    probe = _PROBE.get()
    for path, values in reports.items():
        for part, value in values.items():
            assert probe is not None
            probe.add(path, f"{stack}.{part}", value)


def report_hidden(x_BTD: Float[Array, "B T D"]) -> None:
    """Report the hidden states that leave a layer: mean, root mean square and largest magnitude over all tokens."""
    if (probe := _PROBE.get()) is None:
        return
    x_BTD = x_BTD.astype(jnp.float32)
    counted_BT1 = _counted(probe, x_BTD.shape[:2])[..., None]
    kept_BTD = jnp.where(counted_BT1, x_BTD, 0)
    numbers = jnp.maximum(counted_BT1.sum() * x_BTD.shape[-1], 1)
    probe.add("activations/mean", "hidden", kept_BTD.sum() / numbers)
    probe.add("activations/rms", "hidden", jnp.sqrt(jnp.square(kept_BTD).sum() / numbers))
    probe.add("activations/max", "hidden", jnp.abs(kept_BTD).max())


def report_units(x_BTF: Float[Array, "B T F"]) -> None:
    """Report the share of the units of an MLP that are dead: whose activation's input is above 0 for no token."""
    if (probe := _PROBE.get()) is None:
        return
    used_F = ((x_BTF > 0) & _counted(probe, x_BTF.shape[:2])[..., None]).any((0, 1))
    probe.add("activations/dead", "mlp", 1 - used_F.astype(jnp.float32).mean())


def report_expert_units(used: Callable[[Bool[Array, "B T"]], Bool[Array, "B E F"]], shape: tuple[int, ...]) -> None:
    """Report the share of the units of all experts of a layer that are dead, as `report_units` has it.

    Args:
        used: returns which units of which experts some of the given tokens of each row use.
        shape: of the tokens, (B, T).
    """
    if (probe := _PROBE.get()) is not None:
        used_EF = used(_counted(probe, shape)).any(0)
        probe.add("activations/dead", "experts", 1 - used_EF.astype(jnp.float32).mean())


def report_scores(scores: Callable[[], Float[Array, "B H T S"]]) -> None:
    """Report the mean entropy of attention over heads and tokens, in nats, and its largest logit.

    `scores` returns what the softmax receives; positions that are not visible have less than -1e29.
    """
    report_attention(lambda: entropy_and_top(scores()))


def report_attention(found: Callable[[], tuple[Float[Array, "B H T"], Float[Array, "B H T"]]]) -> None:
    """Report the same from what `entropy_and_top` returns for the scores of each query."""
    if (probe := _PROBE.get()) is None:
        return
    entropy_BHT, top_BHT = found()
    counted_B1T = _counted(probe, (entropy_BHT.shape[0], entropy_BHT.shape[2]))[:, None]
    queries = jnp.maximum(counted_B1T.sum() * entropy_BHT.shape[1], 1)
    probe.add("attention/entropy", probe.attention, jnp.where(counted_B1T, entropy_BHT, 0).sum() / queries)
    probe.add("attention/max_logit", probe.attention, jnp.where(counted_B1T, top_BHT, -jnp.inf).max())


def report_logits(largest: Callable[[], Float[Array, ""]]) -> None:
    """Report the largest logit of the vocabulary."""
    if (probe := _PROBE.get()) is not None:
        probe.add("logits/max", "", largest())


def entropy_and_top(scores_xS: Float[Array, "*x S"]) -> tuple[Float[Array, "*x"], Float[Array, "*x"]]:
    """Return the entropy of the softmax of the scores, in nats, and the largest score, in float32."""
    scores_xS = scores_xS.astype(jnp.float32)
    log_p_xS = jax.nn.log_softmax(scores_xS)
    p_xS = jnp.exp(log_p_xS)
    return -(p_xS * log_p_xS).sum(-1), scores_xS.max(-1)


def _counted(probe: _Probe, shape: tuple[int, ...]) -> Bool[Array, "B T"]:
    return jnp.ones(shape, bool) if probe.counted_BT is None else probe.counted_BT


@contextmanager
def _use(probe: _Probe) -> Iterator[_Probe]:
    token = _PROBE.set(probe)
    try:
        yield probe
    finally:
        _PROBE.reset(token)
