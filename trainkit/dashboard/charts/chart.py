"""A chart: its curves are redrawn only when data, size, colours or the viewport have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.dashboard.charts import titles
from trainkit.dashboard.charts.captions import Caption
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import ChartOptions, Curve, extent, visible_curves
from trainkit.dashboard.charts.plot import Picture, draw
from trainkit.dashboard.charts.titles import Part
from trainkit.dashboard.charts.viewport import Viewport, viewport_of
from trainkit.events.view import Marker
from trainkit.text import one_line

#: How much the wheel zooms, and the share of the picture that it pans.
ZOOM, PAN = 1.25, 0.1


class Chart(Widget):
    """Curves over the steps of the application's viewport, with a caption on the borders."""

    DEFAULT_CSS = "Chart { height: 1fr; width: 1fr; }"

    def __init__(self, *, key: str = "", from_zero: bool = False, linked: bool = True, id: str | None = None) -> None:
        """`key` is the metric whose options it has. A chart that is not `linked` has an axis other than steps, and so
        follows no viewport."""
        self._only_borders = False
        super().__init__(id=id)
        self.key = key
        self.from_zero, self.linked = from_zero, linked
        self._curves: Sequence[Curve] = ()
        self._marks: Sequence[Marker] = ()
        self._log = False
        self._title: Sequence[Part] | None = None
        #: What is drawn, with the versions of the curves.
        self._shown: object = None
        self._picture: Picture | None = None
        self._picture_of: object = None
        self._strips: list[Strip] = []
        self._strips_of: object = None
        self._stale = False
        self._grabbed: int | None = None
        self._dragged = False

    def on_mount(self) -> None:
        self.viewport.members.add(self)
        # without colours, a letter identifies a curve in the borders
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._follow())

    def show(
        self,
        curves: Sequence[Curve],
        *,
        marks: Sequence[Marker] = (),
        log: bool = False,
        title: str | Sequence[Part] | None = None,
    ) -> None:
        """Show these curves from now on; cheap if nothing has changed.

        With a `title` (inert if it is in parts) the chart writes its own captions, otherwise the caller does.
        `log` gives values a logarithmic axis even if the chart's options do not.
        """
        parts = [(one_line(title), theme.DIM)] if isinstance(title, str) else title
        viewport = self.viewport
        wanted = (
            tuple((id(c.series), c.series.version, len(c.series), c.color, c.label) for c in curves),
            (len(marks), marks[-1] if marks else None), log, parts and tuple(parts),
            viewport.version, self.cross, self.linked, self.look,
        )  # fmt: skip
        if wanted == self._shown:
            return
        self._curves, self._marks, self._log, self._title, self._shown = curves, marks, log, parts, wanted
        before = self._picture
        self.entitle()
        self._repaint(before)

    @property
    def viewport(self) -> Viewport:
        return viewport_of(self.app)

    @property
    def window(self) -> StepRange | None:
        """The steps that are shown; None if these are all."""
        return self.viewport.window(self.extent)

    @property
    def cross(self) -> float | None:
        return self.viewport.cross if self.linked else None

    @property
    def log_x(self) -> bool:
        return self.viewport.log_x and self.linked

    @property
    def look(self) -> ChartOptions:
        look = self.viewport.look(self.key)
        return look._replace(log=look.log or self._log)

    @property
    def curves(self) -> Sequence[Curve]:
        return self._curves

    @property
    def title_text(self) -> str:
        """The title without colours."""
        return "".join(text for text, _ in self._title or ())

    @property
    def marks(self) -> Sequence[Marker]:
        return self._marks

    @property
    def extent(self) -> StepRange | None:
        """All steps that it has; None if it has none, or follows no viewport."""
        return extent(self._curves, log=self.log_x) if self.linked else None

    @property
    def in_sight(self) -> bool:
        if not self.is_attached or not self.size.area:
            return False
        return all(node.display for node in self.ancestors_with_self if isinstance(node, Widget))

    @property
    def letters(self) -> bool:
        """Whether curves must be distinguishable without colours."""
        return self.app.theme == theme.PLAIN or self.app.no_color

    def picture(self) -> Picture:
        """Return the curves drawn at the present size."""
        width, height = self.size
        viewport, look = self.viewport, self.look
        of = (self._shown, width, height, self.app.theme, self.letters, look, viewport.version)
        if self._picture is None or self._picture_of != of:
            window = self.window
            self._picture = draw(
                self._curves, colors=self.app.theme_variables, width=width, height=height, window=window,
                log_x=self.log_x, look=look, from_zero=self.from_zero, marks=self._marks,
                unit=titles.unit(self._curves[0].metric) if self._curves else "", letters=self.letters,
                exact=viewport.exact_for(window) if window else {}, over="step" if self.linked else "",
            )  # fmt: skip
            self._picture_of = of
        return self._picture

    def _repaint(self, before: Picture | None) -> None:
        """Draw only the lines that differ from the picture on the screen, so that a terminal receives no others."""
        lines = None
        if before is not None and self.cross is None and self.size.area:
            lines = self.picture().lines_unlike(before)
        if lines is None:
            self.refresh()
        elif lines:
            self.refresh(*(Region(0, line, self.size.width, 1) for line in lines))

    def render_line(self, y: int) -> Strip:
        """One line of the picture with the crosshair."""
        picture, cross = self.picture(), self.cross
        if self._strips_of != (of := (id(picture), self._picture_of, cross)):
            style = theme.rich_style(self.app.theme_variables, theme.BRIGHT)
            self._strips, self._strips_of = picture.strips(cross, style), of
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def viewport_changed(self) -> None:
        """Follow the viewport, once for a burst of changes."""
        if not self._stale and self.in_sight:
            self._stale = True
            self.call_later(self._follow)

    def _follow(self) -> None:
        self._stale = False
        self.entitle()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self.entitle()

    def entitle(self) -> None:
        """Write the captions on the borders."""
        if self._title is None or not self.size.area:
            return
        viewport, width = self.viewport, self.outer_size.width - 6
        window = self.window
        caption = Caption(
            title=self._title, curves=visible_curves(self._curves, self.look), marks=self._marks,
            look=self.look, picture=self.picture(), window=window, cross=self.cross, log_x=self.log_x,
            letters=self.letters, exact=viewport.exact_for(window) if window else {},
        )  # fmt: skip
        title, subtitle = caption.above(width), caption.below(width)
        self._only_borders = True
        if title.markup != self.border_title:
            self.border_title = title
        if subtitle.markup != self.border_subtitle:
            self.border_subtitle = subtitle
        self._only_borders = False

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Refresh as any widget does, but redraw the borders alone where only a caption has changed, which is often."""
        if self._only_borders and all(edge := self.content_offset):
            width, below = self.outer_size.width, self.size.height
            regions = (Region(-edge.x, -edge.y, width, edge.y), Region(-edge.x, below, width, edge.y))
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _step_at(self, event: events.MouseEvent) -> float | None:
        """The step under the mouse."""
        picture = self.picture()
        if picture.window is None:
            return None
        offset = event.get_content_offset_capture(self).x - picture.gutter
        if not 0 <= offset < picture.columns:
            return None
        low, high = picture.steps(offset)
        return min(max((low + high) / 2, picture.window.low), picture.window.high)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if not self.linked:
            return
        if self._grabbed is None:
            self.viewport.point(self._step_at(event))
        elif (moved := event.screen_x - self._grabbed) and (whole := self.viewport.whole()):
            self._grabbed, self._dragged = event.screen_x, True
            self.viewport.pan(-moved / max(1, self.picture().columns), whole)

    def on_leave(self, event: events.Leave) -> None:
        if not self.viewport.pinned:
            self.viewport.point(None)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._dragged = False
        if self.linked and event.button == 1:
            self._grabbed = event.screen_x
            self.capture_mouse()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._grabbed = None
        self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        if self._dragged:
            event.stop()
        elif self.linked and (step := self._step_at(event)) is not None:
            self.viewport.point(step, pinned=True)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 1 / ZOOM, -PAN)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, ZOOM, PAN)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        self._wheel(event, 1.0, -PAN)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        self._wheel(event, 1.0, PAN)

    def _wheel(self, event: events.MouseEvent, factor: float, share: float) -> None:
        if not self.linked or (whole := self.viewport.whole()) is None:
            return
        event.stop()
        if event.shift or factor == 1.0:
            self.viewport.pan(share, whole)
        else:
            self.viewport.zoom(factor, whole, around=self._step_at(event))
