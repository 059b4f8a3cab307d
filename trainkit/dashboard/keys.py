"""The keys in force, as the bindings have them, in footer, help and command palette; and the dialogs that keys open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer as AllKeys
from textual.widgets import Input, Static
from textual.widgets._footer import FooterKey

from trainkit.dashboard import theme
from trainkit.dashboard.charts.plot import MARKS
from trainkit.dashboard.pages.page import Page
from trainkit.errors import TrainkitError


class KeyedApp(Protocol):
    """What footer, help and palette need of the application."""

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
    names: dict[tuple[DOMNode, str], tuple[str, str]] = {}
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
        names.setdefault(where, (name, binding.tooltip or name))
    keys = [
        Key(_group(node, action), " ".join(dict.fromkeys(shown)), *names[node, action], action, node)
        for (node, action), shown in found.items()
    ]
    order = {group: place for place, group in enumerate(dict.fromkeys(key.group for key in keys))}
    return sorted(keys, key=lambda key: (not isinstance(key.node, Page), order[key.group]))


class Footer(AllKeys):
    """As many keys as fit, none of them cut; the help, at the right end, lists the others. Keys that can do nothing now
    are left out."""

    #: What the keys that are there were composed of.
    _composed_of: list[tuple[object, ...]] | None = None

    def compose(self) -> ComposeResult:
        app = cast("KeyedApp", self.app)
        for key in super().compose():
            if not isinstance(key, FooterKey) or app.offers(key.action):
                yield key

    async def recompose(self) -> None:
        shown = self._bindings_in_force()
        if shown == self._composed_of:
            return  # textual asks at every change of the focus and of the screen
        await super().recompose()
        self._composed_of = shown
        self.call_after_refresh(self._fit)  # the keys have their places after the next refresh

    def _bindings_in_force(self) -> list[tuple[object, ...]]:
        """Return all that the keys are composed of."""
        app = cast("KeyedApp", self.app)
        return [
            (active.binding, active.enabled, active.tooltip, app.offers(active.binding.action))
            for active in self.screen.active_bindings.values()
        ]

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        keys = list(self.query(FooterKey))
        ends = [key.region.x for key in keys if key.has_class("-command-palette")]
        end = min(ends, default=self.region.right)
        for key in keys:
            key.visible = key.region.x >= end or key.region.right <= end


class PaletteCommands(Provider):
    """Every action of a key by its name, and commands without a key: themes, pages beyond the ninth."""

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
    """Return the name of a page, or the title of the application's first class with the binding."""
    if isinstance(node, Page):
        return f"this page: {node.NAME}"
    for base in reversed(type(node).__mro__):
        title = base.__dict__.get("BINDING_GROUP_TITLE")
        if title and any(getattr(binding, "action", "") == action for binding in base.__dict__.get("BINDINGS", ())):
            return str(title)
    return ""


#: Signs and words on a chart, and what they mean.
LINES = (
    ("━", theme.TRAIN, "trend of the training loss, on the band of all values"),
    ("━", theme.VALIDATION[0], "validation loss"),
    ("▲▼", theme.TRAIN, "off the scale; o shows the whole range"),
    ("×", theme.BAD, "not a number"),
    ("1.5", theme.TEXT, "after a title: the last value"),
    ("best", theme.DIM, "the lowest loss or error, the highest accuracy, of the steps that are shown"),
    ("Δ", theme.DIM, "change: the mean of the last tenth of these steps against that of the first tenth"),
)


class Confirm(ModalScreen[bool]):
    """A question with yes or no. Enter alone means no, so that a key held down confirms nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str, explanation: str, *, yes: str) -> None:
        """`explanation` says what will happen, `yes` in a word what `y` does."""
        super().__init__()
        self._question, self._explanation, self._yes = question, explanation, yes

    def compose(self) -> ComposeResult:
        yield Static(
            Content.assemble(
                (f"{self._question}\n\n", f"bold {theme.BRIGHT}"),
                (f"{self._explanation}\n\n", theme.TEXT),
                _answers(("y", self._yes), ("n", "cancel")),
            ),
            classes="dialog",
        )

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """A question for a line of text; the result is None after escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]

    def __init__(self, question: str, explanation: str, *, value: str = "", check: Callable[[str], object]) -> None:
        """`value` is the initial text. `check` raises a TrainkitError for a wrong answer; its message is shown."""
        super().__init__()
        self._question, self._explanation, self._value, self._check = question, explanation, value, check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question"):
            yield Static(Content.styled(self._question, f"bold {theme.BRIGHT}"))
            yield Static(Content.styled(self._explanation, theme.TEXT), id="explanation")
            yield Input(self._value, select_on_focus=True)
            yield Static(_answers(("enter", "accept"), ("escape", "cancel")), classes="keys")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._check(event.value)
        except TrainkitError as error:
            self.query_one("#explanation", Static).update(Content.styled(error.problem, theme.WARN))
        else:
            self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    """The keys in force, and what the signs on a chart mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "leave", "leave"),
        Binding("j,down", "scroll(1)", "down"),
        Binding("k,up", "scroll(-1)", "up"),
        Binding("pagedown,space", "scroll(10)", "a page down"),
        Binding("pageup", "scroll(-10)", "a page up"),
        Binding("g,home", "scroll(-10000)", "first"),
        Binding("G,end", "scroll(10000)", "last"),
    ]

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help", can_focus=False):
            yield Static(self._text())

    def _text(self) -> Content:
        signs = [*LINES, *((sign, color, kind) for kind, (sign, color) in MARKS.items())]
        pad = max((len(key.keys) for key in self._keys), default=0) + 3
        parts: list[Content] = []
        for group, keys in groupby(self._keys, key=lambda key: key.group):
            parts.append(Content.styled(group, theme.DIM))
            parts += [_line(f"{key.keys:<{pad}}", f"bold {theme.BRIGHT}", key.meaning) for key in keys]
            parts.append(Content(""))
        parts.append(Content.styled("signs on a chart", theme.DIM))
        parts += [_line(f"{sign:<{pad}}", color, meaning) for sign, color, meaning in signs]
        return Content("\n").join(parts)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_leave(self) -> None:
        self.dismiss()


def _answers(yes: tuple[str, str], no: tuple[str, str]) -> Content:
    """Return the two keys that answer, each with its effect."""
    parts = [(yes[0], f"bold {theme.WARN}"), (f" {yes[1]}      ", theme.DIM)]
    return Content.assemble(*parts, (no[0], f"bold {theme.BRIGHT}"), (f" {no[1]}", theme.DIM))


def _line(head: str, style: str, meaning: str) -> Content:
    return Content.assemble((f"  {head}", style), (meaning, theme.TEXT))
