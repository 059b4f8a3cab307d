"""The rotary decoder shared by its families (`recipe/families/`). Shapes as in `attention.py`."""

from __future__ import annotations

from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import KERNELS, KeyValues, Window
from trainkit.models.build import BuildArguments
from trainkit.models.decoder_block import DecoderBlock, LayerContext, rms_norm
from trainkit.models.master_weights import lookup
from trainkit.models.moe import Routing
from trainkit.models.rope import RotaryTables, rotary_tables, stack_tables
from trainkit.models.stack import LanguageModel, parts, positions, scan_kinds
from trainkit.recipe.families import decoder as recipe
from trainkit.recipe.families.moe import Sparse
from trainkit.recipe.families.rope import Rope


class DecoderModel(LanguageModel):
    """A decoder with rotary positions, RMS norms and gated MLPs."""

    windows: tuple[int | None, ...] = eqx.field(static=True)
    ropes: tuple[Rope, ...] = eqx.field(static=True)
    embedding_scale: float | None = eqx.field(static=True)
    router_loss: float = eqx.field(static=True)
    """Coefficient of `Routing.balance_loss`; 0 where there are no experts."""

    @staticmethod
    def init(spec: recipe.Decoder, **given: Unpack[BuildArguments]) -> DecoderModel:
        """Return a model with random weights."""

        def block(key: PRNGKeyArray) -> DecoderBlock:
            return DecoderBlock.init(spec, key, implementation=given["implementation"], fp8=given["fp8"])

        tokens, blocks, output = jax.random.split(given["key"], 3)
        common = parts(spec, block, given, keys=(tokens, blocks, output))
        return DecoderModel(
            **common,
            final_norm=rms_norm(spec, spec.hidden),
            final_softcap=spec.softcap_of_logits,
            windows=spec.windows,
            ropes=spec.ropes,
            embedding_scale=spec.hidden**0.5 if spec.scaled_embedding else None,
            router_loss=spec.router_loss if isinstance(spec, Sparse) else 0.0,
        )

    def hidden_states(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """As `LanguageModel.hidden_states`."""
        hidden_BTD, cache, _ = self._run(tokens_BT, positions_BT, segments_BT, cache)
        return hidden_BTD, cache

    def hidden_and_penalty(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        counted_BT: Bool[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, ""]]:
        """As `LanguageModel.hidden_and_penalty`: how unevenly the experts were busy with these tokens."""
        with probe.mark_tokens(counted_BT):
            hidden_BTD, _, routing = self._run(tokens_BT, positions_BT, segments_BT, None, counted_BT)
        if routing is None or not self.router_loss:
            return hidden_BTD, jnp.float32(0)
        return hidden_BTD, self.router_loss * routing.balance_loss()

    def _run(
        self,
        tokens_BT: Array,
        positions_BT: Array | None,
        segments_BT: Array | None,
        cache: KeyValues | None,
        counted_BT: Array | None = None,
    ) -> tuple[Array, KeyValues | None, Routing | None]:
        assert segments_BT is None or cache is None
        at_BT = positions(tokens_BT) if positions_BT is None else positions_BT
        if counted_BT is None and segments_BT is not None:
            counted_BT = segments_BT > 0
        x_BTD = self.embedding_noise(lookup(self.token_embedding, tokens_BT))
        if self.embedding_scale is not None:
            x_BTD = x_BTD * jnp.asarray(self.embedding_scale, x_BTD.dtype)
        width, attention = self.blocks.attention.key_width, self.blocks.attention

        def through(
            x_BTD: Array, block: DecoderBlock, cache: KeyValues | None, window: Window, rotary: RotaryTables
        ) -> tuple[Array, tuple[KeyValues | None, Routing | None]]:
            place = LayerContext(at_BT, segments_BT, window, rotary, counted_BT)
            x_BTD, cache, routing = block(x_BTD, place, cache)
            return x_BTD, (cache, routing)

        if len(set(self.windows)) > 1 and cache is None and attention.implementation in KERNELS:

            def layer_of_kind(x_BTD: Array, block: DecoderBlock, kind: tuple[int | None, Rope]) -> tuple[Array, Any]:
                window, rope = kind
                return through(x_BTD, block, None, window, rotary_tables(rope, width))

            # fast attention supports windows that are constants
            kinds = tuple(zip(self.windows, self.ropes, strict=True))
            x_BTD, (_, routing) = scan_kinds(
                layer_of_kind, kinds, x_BTD, self.blocks, remat=self.remat, segments_BT=segments_BT
            )
            return self.final_norm(x_BTD), None, routing

        # what is the same in all layers is a constant; what differs is scanned over
        window_L = None if len(set(self.windows)) == 1 else jnp.asarray([w or 0 for w in self.windows], jnp.int32)
        rotary_L = (
            None if len(set(self.ropes)) == 1 else stack_tables([rotary_tables(rope, width) for rope in self.ropes])
        )

        def layer(x_BTD: Array, of_layer: tuple[DecoderBlock, KeyValues | None, Array | None, RotaryTables | None]):
            block, cache, window, rotary = of_layer
            visible_window = self.windows[0] if window is None else window
            return through(x_BTD, block, cache, visible_window, rotary or rotary_tables(self.ropes[0], width))

        x_BTD, (cache, routing) = self._through(layer, x_BTD, (self.blocks, cache, window_L, rotary_L), segments_BT)
        return x_BTD, cache, routing


build = DecoderModel.init
