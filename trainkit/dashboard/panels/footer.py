"""The line of keys at the bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.widgets import Footer as AllKeys
from textual.widgets._footer import FooterKey

if TYPE_CHECKING:
    from trainkit.dashboard.themed import Themed


class Footer(AllKeys):
    """As many keys as fit, none of them cut; the help, at the right end, lists the others. Keys
    that can do nothing now are left out."""

    def compose(self) -> ComposeResult:
        app = cast("Themed[Any]", self.app)
        for key in super().compose():
            if not isinstance(key, FooterKey) or app.offers(key.action):
                yield key

    async def recompose(self) -> None:
        await super().recompose()
        self.call_after_refresh(self._fit)  # the keys are there now, and have their places after the next refresh

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        keys = list(self.query(FooterKey))
        ends = [key.region.x for key in keys if key.has_class("-command-palette")]
        end = min(ends, default=self.region.right)
        for key in keys:
            key.visible = key.region.x >= end or key.region.right <= end
