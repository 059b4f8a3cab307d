"""The keys in force, as the bindings have them: for the footer, the help and the command palette."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from textual.app import App, ComposeResult
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Footer as AllKeys
from textual.widgets._footer import FooterKey

from trainkit.dashboard.pages.page import Page


class KeyedApp(Protocol):
    """What these ask of the application."""

    def offers(self, action: str) -> bool:
        """Return whether the keys that do this are shown: it can be done now."""

    def commands_without_key(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Yield (name, meaning, what does it) of what only the palette offers."""


class Key(NamedTuple):
    """An action and the keys that do it; `meaning` is a few words, `group` where it belongs."""

    group: str
    keys: str
    name: str
    meaning: str
    action: str
    node: DOMNode


def keys_in_force(screen: Screen[Any], *, only_offered: bool = True) -> list[Key]:
    """Return every action that has a key on the page in front or in the application, group by group, the page's first;
    by default without those that can do nothing now."""
    found: dict[tuple[DOMNode, str], list[str]] = {}
    told: dict[tuple[DOMNode, str], tuple[str, str]] = {}
    app = cast("KeyedApp", screen.app)
    for active in screen.active_bindings.values():
        node, binding = active.node, active.binding
        if binding.system or not active.enabled or not isinstance(node, Page | App):
            continue
        if only_offered and not app.offers(binding.action):
            continue
        where = node, binding.action
        found.setdefault(where, []).append(screen.app.get_key_display(binding))
        name = binding.description or binding.action.partition("(")[0].replace("_", " ")
        told.setdefault(where, (name, binding.tooltip or name))
    keys = [
        Key(_group(node, action), " ".join(dict.fromkeys(shown)), *told[node, action], action, node)
        for (node, action), shown in found.items()
    ]
    order = {group: place for place, group in enumerate(dict.fromkeys(key.group for key in keys))}
    return sorted(keys, key=lambda key: (not isinstance(key.node, Page), order[key.group]))


class Footer(AllKeys):
    """As many keys as fit, none of them cut; the help, at the right end, lists the others. Keys
    that can do nothing now are left out."""

    def compose(self) -> ComposeResult:
        app = cast("KeyedApp", self.app)
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


class PaletteCommands(Provider):
    """Whatever a key does, by its name, and what no key does: every theme, every page beyond the ninth."""

    async def discover(self) -> Hits:
        for name, meaning, command in self._commands():
            yield DiscoveryHit(name, command, help=meaning or None)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, meaning, command in self._commands():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), command, help=meaning or None)

    def _commands(self) -> Iterator[tuple[str, str, Any]]:
        app = cast("KeyedApp", self.app)
        for key in keys_in_force(self.screen):
            if key.action != "command_palette":
                name = f"{key.name} ({key.keys})"
                more = key.group if isinstance(key.node, Page) else ""
                meaning = more if key.meaning == key.name else f"{key.group}: {key.meaning}"
                yield name, meaning, partial(self.app.run_action, key.action, key.node)
        yield from app.commands_without_key()


def _group(node: DOMNode, action: str) -> str:
    """A page's name; of an application the title of the first class that has the binding."""
    if isinstance(node, Page):
        return f"this page: {node.NAME}"
    for base in reversed(type(node).__mro__):
        title = base.__dict__.get("BINDING_GROUP_TITLE")
        if title and any(getattr(binding, "action", "") == action for binding in base.__dict__.get("BINDINGS", ())):
            return str(title)
    return ""
