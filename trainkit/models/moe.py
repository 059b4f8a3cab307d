"""Mixtures of experts without dropping: every token goes through all of its experts.

Shapes: B batch, T positions, N tokens, D hidden, E experts, F width inside one, C experts of a token, R = N x C rows, J
blocks of M places each, P = J x M.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import grouped_product, probe
from trainkit.models.custom_vjps import gated_silu
from trainkit.models.layers import Linear
from trainkit.models.master_weights import Weight, exact
from trainkit.parallel.mesh import on_own_rows
from trainkit.recipe.families.moe import Sparse

#: Rows of a block: fewer would not be worth reading an expert's matrix, more would leave too many places empty.
LEAST_ROWS, MOST_ROWS = 8, 256


class Routing(NamedTuple):
    """What a router did, summed over tokens and, added up, over layers; float32."""

    chosen_E: Float[Array, "*L E"]
    """Tokens that each expert was given."""
    probability_E: Float[Array, "*L E"]
    tokens: Float[Array, "*L"]

    def balance_loss(self) -> Float[Array, ""]:
        """Return the number of experts x the sum over them of share of tokens x mean probability (Fedus et al. 2021,
        eq. 4).

        It is smallest, the number of experts of a token, if all experts are equally busy. All layers are taken
        together, as in `transformers`.
        """
        experts = self.chosen_E.shape[-1]
        chosen_E, probability_E = (x.reshape(-1, experts).sum(0) for x in (self.chosen_E, self.probability_E))
        return experts * (chosen_E * probability_E).sum() / jnp.maximum(self.tokens.sum(), 1) ** 2


class Experts(eqx.Module):
    """Gated MLPs; a router chooses a few for each token (Shazeer et al. 2017; Jiang et al. 2024).

    Their products have the dtype of the input, never fp8.
    """

    router: Linear
    gate: Float[Array, "E D F"]
    up: Float[Array, "E D F"]
    down: Float[Array, "E F D"]
    per_token: int = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)
    """Whether a token's weights add up to 1, as a softmax over its experts alone would make them."""

    @staticmethod
    def init(spec: Sparse, key: PRNGKeyArray, *, residual: float) -> Experts:
        """`residual` is the standard deviation of what is added to the residual stream."""
        d, f, e, scale = spec.hidden, spec.mlp_width, spec.experts, spec.initializer_range
        router, gate, up, down = jax.random.split(key, 4)
        return Experts(
            Linear.init(router, d, e, scale=scale, bias=False),
            jax.random.normal(gate, (e, d, f)) * scale,
            jax.random.normal(up, (e, d, f)) * scale,
            jax.random.normal(down, (e, f, d)) * residual,
            spec.experts_per_token,
            spec.normalised,
        )

    def __call__(
        self, x_BTD: Float[Array, "B T D"], counted_BT: Bool[Array, "B T"] | None
    ) -> tuple[Float[Array, "B T D"], Routing]:
        """Return the weighted sum of the outputs of each token's experts, and the routing of the tokens in
        `counted_BT`."""
        logits_BTE = x_BTD.astype(jnp.float32) @ exact(self.router.weight)
        probability_BTE = jax.nn.softmax(logits_BTE)
        weight_BTC, chosen_BTC = jax.lax.top_k(probability_BTE, self.per_token)
        if self.normalised:
            weight_BTC = weight_BTC / weight_BTC.sum(-1, keepdims=True)
        y_BTD = on_own_rows(
            through_experts, x_BTD, chosen_BTC, weight_BTC, self.gate, self.up, self.down, whole=(3, 4, 5)
        )
        probe.report_expert_units(
            lambda seen_BT: on_own_rows(used_units, x_BTD, chosen_BTC, seen_BT, self.gate, whole=(3,)), x_BTD.shape[:2]
        )
        counted_BT1 = jnp.float32(1) if counted_BT is None else counted_BT[..., None].astype(jnp.float32)
        hits_BTE = jax.nn.one_hot(chosen_BTC, self.gate.shape[0]).sum(-2)
        tokens = jnp.broadcast_to(counted_BT1, (*x_BTD.shape[:2], 1)).sum()
        chosen_E, probability_E = ((x_BTE * counted_BT1).sum((0, 1)) for x_BTE in (hits_BTE, probability_BTE))
        return y_BTD, Routing(chosen_E, probability_E, tokens)


def through_experts(
    x_BTD: Float[Array, "B T D"],
    chosen_BTC: Int[Array, "B T C"],
    weight_BTC: Float[Array, "B T C"],
    gate_EDF: Float[Array, "E D F"] | Weight,
    up_EDF: Float[Array, "E D F"] | Weight,
    down_EFD: Float[Array, "E F D"] | Weight,
) -> Float[Array, "B T D"]:
    """Tokens sorted by expert, in blocks that have one expert each (Gale et al. 2022), and put back.

    Every row is taken once, so that the backward pass adds nothing up in an order that could differ.
    """
    b, t, d = x_BTD.shape
    n, c = b * t, chosen_BTC.shape[-1]
    places, x_PD = _placed(x_BTD, chosen_BTC, gate_EDF.shape[0])
    inner_PF = gated_silu(places.product(x_PD, gate_EDF), places.product(x_PD, up_EDF))
    y_RD = places.product(inner_PF, down_EFD).at[places.place_R].get(unique_indices=True)
    y_ND = jnp.einsum("ncd,nc->nd", y_RD.reshape(n, c, d).astype(jnp.float32), weight_BTC.reshape(n, c))
    return y_ND.reshape(b, t, d).astype(x_BTD.dtype)


def used_units(
    x_BTD: Float[Array, "B T D"],
    chosen_BTC: Int[Array, "B T C"],
    counted_BT: Bool[Array, "B T"],
    gate_EDF: Float[Array, "E D F"] | Weight,
) -> Bool[Array, "B E F"]:
    """Return the units of each expert whose activation has an input above 0 for one of the counted tokens of a row."""
    experts = gate_EDF.shape[0]
    places, x_PD = _placed(x_BTD, chosen_BTC, experts)
    gate_RF = places.product(x_PD, gate_EDF).at[places.place_R].get(unique_indices=True)
    above_BTCF = (gate_RF > 0).reshape(*chosen_BTC.shape, -1).astype(jnp.float32)
    given_BTCE = jax.nn.one_hot(chosen_BTC, experts) * counted_BT[..., None, None]
    return jnp.einsum("btcf,btce->bef", above_BTCF, given_BTCE) > 0


def _placed(
    x_BTD: Float[Array, "B T D"], chosen_BTC: Int[Array, "B T C"], experts: int
) -> tuple[Places, Float[Array, "P D"]]:
    """Return the places of all rows, and the rows in them."""
    (b, t, d), c = x_BTD.shape, chosen_BTC.shape[-1]
    places = Places.of(chosen_BTC.reshape(b * t * c), experts)
    x_RD = jnp.broadcast_to(x_BTD.reshape(b * t, 1, d), (b * t, c, d)).reshape(b * t * c, d)
    return places, x_RD.at[places.row_P].get(mode="fill", fill_value=0, unique_indices=True)


class Places(NamedTuple):
    """Where each row goes, and whose each block of places is. The places that the last block of an expert has too many,
    and the blocks that no expert needs, hold no row."""

    place_R: Int[Array, " R"]
    row_P: Int[Array, " P"]
    """R and more where there is none."""
    expert_J: Int[Array, " J"]

    @staticmethod
    def of(expert_R: Int[Array, " R"], experts: int) -> Places:
        """In blocks of half the rows that an expert has on average: few places are left over, few blocks are needed."""
        rows = expert_R.size
        half = 1 << max((rows // experts).bit_length() - 2, 0)
        least = grouped_product.LEAST_TILE if jax.default_backend() == "gpu" else LEAST_ROWS
        size = min(max(half, least), MOST_ROWS)
        order_R = jnp.argsort(expert_R)
        sorted_R, rows_E = expert_R[order_R], jnp.bincount(expert_R, length=experts)
        blocks_E = -(-rows_E // size)
        last_E = jnp.cumsum(blocks_E)
        rank_R = jnp.arange(rows) - (jnp.cumsum(rows_E) - rows_E)[sorted_R]
        place_R = (last_E - blocks_E)[sorted_R] * size + rank_R
        count = rows // size + min(experts, rows)  # each expert has at most one block that is not full
        return Places(
            jnp.zeros(rows, jnp.int32).at[order_R].set(place_R.astype(jnp.int32)),
            (rows + jnp.arange(count * size)).at[place_R].set(order_R),
            jnp.minimum(jnp.searchsorted(last_E, jnp.arange(count), side="right"), experts - 1),
        )

    def product(self, x_PD: Float[Array, "P D"], weight_EDF: Float[Array, "E D F"] | Weight) -> Float[Array, "P F"]:
        """Return each block times the matrix of its expert."""
        x_JMD = x_PD.reshape(self.expert_J.size, -1, x_PD.shape[-1])
        if not isinstance(weight_EDF, Weight) and jax.default_backend() != "tpu":
            # rounded and master would be the same array; the backward pass of a scan over layers would copy it
            return plain_blocked_product(x_JMD, weight_EDF, self.expert_J).reshape(len(x_PD), -1)
        weight = Weight.of(weight_EDF)
        if jax.default_backend() == "tpu":  # on other devices XLA would multiply each row with all experts
            sizes_E = jnp.bincount(self.expert_J, length=weight.shape[0]) * (len(x_PD) // self.expert_J.size)
            return ragged_product(x_PD, weight.rounded, weight.master, sizes_E.astype(jnp.int32))
        return blocked_product(x_JMD, weight.rounded, weight.master, self.expert_J).reshape(len(x_PD), -1)


@jax.custom_vjp
def ragged_product(
    x_PD: Float[Array, "P D"], rounded_EDF: Array, master_EDF: Array, sizes_E: Int[Array, " E"]
) -> Float[Array, "P F"]:
    """Return the first rows times the first matrix, the next rows times the second, and so on; see `Weight`."""
    return jax.lax.ragged_dot(x_PD, rounded_EDF, sizes_E)


def _ragged_backward(residuals: tuple[Array, Array, Array], dy_PF: Array) -> tuple[Array, None, Array, None]:
    x_PD, rounded_EDF, sizes_E = residuals
    over_rows = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    dw_EDF = jax.lax.ragged_dot_general(x_PD, dy_PF, sizes_E, over_rows, preferred_element_type=jnp.float32)
    return jax.lax.ragged_dot(dy_PF, rounded_EDF.swapaxes(1, 2), sizes_E), None, dw_EDF, None


ragged_product.defvjp(
    lambda x, rounded, master, sizes: (ragged_product(x, rounded, master, sizes), (x, rounded, sizes)), _ragged_backward
)


@jax.custom_vjp
def blocked_product(
    x_JMD: Float[Array, "J M D"], rounded_EDF: Array, master_EDF: Array, expert_J: Int[Array, " J"]
) -> Float[Array, "J M F"]:
    """Return each block times its expert's matrix: all at once by kernels where there are any; else block by block,
    where the backward pass adds to one gradient in place."""
    if grouped_product.can_multiply(x_JMD, rounded_EDF):
        return grouped_product.multiply(x_JMD, rounded_EDF, expert_J)
    return jax.lax.map(lambda block: block[0] @ rounded_EDF[block[1]], (x_JMD, expert_J))


def _blocked_backward(residuals: tuple[Array, Array, Array], dy_JMF: Array) -> tuple[Array, None, Array, None]:
    x_JMD, weight_EDF, expert_J = residuals
    if grouped_product.can_multiply(x_JMD, weight_EDF):
        dw_EDF = grouped_product.gradient(x_JMD, dy_JMF, expert_J, len(weight_EDF))
        return grouped_product.multiply(dy_JMF, weight_EDF, expert_J, transposed=True), None, dw_EDF, None

    def one(dw_EDF: Array, block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        x_MD, dy_MF, expert = block
        dw_DF = jnp.einsum("md,mf->df", x_MD, dy_MF, preferred_element_type=jnp.float32)
        return dw_EDF.at[expert].add(dw_DF), dy_MF @ weight_EDF[expert].T

    dw_EDF, dx_JMD = jax.lax.scan(one, jnp.zeros(weight_EDF.shape, jnp.float32), (x_JMD, dy_JMF, expert_J))
    return dx_JMD, None, dw_EDF, None


blocked_product.defvjp(
    lambda x, rounded, master, expert: (blocked_product(x, rounded, master, expert), (x, rounded, expert)),
    _blocked_backward,
)


@jax.custom_vjp
def plain_blocked_product(
    x_JMD: Float[Array, "J M D"], weight_EDF: Float[Array, "E D F"], expert_J: Int[Array, " J"]
) -> Float[Array, "J M F"]:
    """Return the same for matrices that are computed with in the dtype in which they are stored."""
    return blocked_product(x_JMD, weight_EDF, weight_EDF, expert_J)


def _plain_blocked_backward(residuals: tuple[Array, Array, Array], dy_JMF: Array) -> tuple[Array, Array, None]:
    dx_JMD, _, dw_EDF, _ = _blocked_backward(residuals, dy_JMF)
    return dx_JMD, dw_EDF.astype(residuals[1].dtype), None


plain_blocked_product.defvjp(
    lambda x, weight, expert: (plain_blocked_product(x, weight, expert), (x, weight, expert)), _plain_blocked_backward
)
