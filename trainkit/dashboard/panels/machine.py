"""The machine of the run in a few lines: devices, host, batch, newest checkpoint."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.dashboard.hardware import devices_in_words
from trainkit.events.view import View
from trainkit.text import format_bytes, format_count, format_duration, format_quantity, neutralise, one_line

BAR = 6


class SystemPanel(Widget):
    """Devices and host: one fact a line, the most telling first, as many as there is room for."""

    DEFAULT_CSS = "SystemPanel { height: 1fr; width: 1fr; padding: 0 1; }"
    BORDER_TITLE = "machine"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._facts: list[tuple[str, Content]] = []

    def show_view(self, view: View, *, now: float) -> None:
        """Show the view's devices, memory, plan and newest checkpoint."""
        facts = [*_devices(view), *_host(view), *_plan(view), *_upkeep(view, now)]
        if facts != self._facts:
            self._facts = facts
            self.refresh()

    def render(self) -> Content:
        rows = self._facts[: self.size.height]
        pad = max((len(label) for label, _ in rows), default=0) + 2
        told = [Content.assemble((f"{label:<{pad}}", theme.DIM), value) for label, value in rows]
        width = self.size.width
        return Content("\n").join([line.truncate(width, ellipsis=True) for line in told])


def _devices(view: View) -> list[tuple[str, Content]]:
    if not view.devices:
        return []
    facts = [("devices", _text(devices_in_words(view)))]
    limit = view.plan.get("devices", {}).get("memory_bytes")
    for metric in sorted(name for name in view.series if name.startswith("memory/device/")):
        used = view.last(metric)
        if used is not None:
            facts.append((f"device {neutralise(metric.rpartition('/')[2])}", _memory(used, limit)))
    return facts


def _host(view: View) -> list[tuple[str, Content]]:
    facts = []
    if (cores := view.last("host/cpu")) is not None:
        facts.append(("cores", _text(f"{cores:.1f} in use")))
    if (memory := view.last("memory/host")) is not None:
        facts.append(("host memory", _text(format_bytes(memory))))
    waited, seconds = view.last("time/data_wait"), view.pace.step_seconds
    if seconds:
        facts.append(("step time", _text(f"{1e3 * seconds:.0f} ms" if seconds < 10 else format_duration(seconds))))
        if waited is not None:
            color = theme.WARN if waited > 0.1 * seconds else theme.TEXT
            facts.append(("data wait", Content.styled(f"{1e3 * waited:.1f} ms ({waited / seconds:.0%})", color)))
    tera, mfu = view.last("throughput/model_tflops"), view.last("throughput/mfu")
    if mfu is not None or tera is not None:
        facts.append(("MFU", _text("n/a" if mfu is None else f"{mfu:.1%}")))
    if tera is not None:
        facts.append(("TFLOP/s", _text(format_quantity(tera))))
    return facts


def _plan(view: View) -> list[tuple[str, Content]]:
    facts = []
    if "parameters" in view.plan:
        facts.append(("parameters", _text(format_count(view.plan["parameters"]))))
    if batch := view.plan.get("batch"):
        parts = [f"{batch['micro']}"]
        parts += [f"{batch['accumulation']} steps"] if batch["accumulation"] > 1 else []
        parts += [f"{batch['replicas']} devices"] if batch["replicas"] > 1 else []
        split = f" = {' × '.join(parts)}" if len(parts) > 1 else ""
        facts.append(("batch", _text(f"{batch['global_size']}{split}")))
    if view.plan.get("sequence_length"):
        facts.append(("sequence", _text(f"{view.plan['sequence_length']:,} tokens")))
    if "compute" in view.plan:
        facts.append(("compute", _text(str(view.plan["compute"]))))
    return facts


def _upkeep(view: View, now: float) -> list[tuple[str, Content]]:
    if view.saving is not None:
        return [("saving", Content.styled(f"step {view.saving:,}", theme.BUSY))]
    if not view.checkpoints:
        return []
    newest = view.checkpoints[-1]
    told = f"{newest.step:,} · {format_bytes(newest.bytes)}"
    if not view.finished and now - newest.t >= 60:
        told += f" · {format_duration(now - newest.t)} ago"
    return [("checkpoint", _text(told))]


def _memory(used: float, limit: float | None) -> Content:
    if not limit:
        return _text(format_bytes(used))
    share = min(1.0, used / limit)
    color = theme.BAD if share > 0.97 else theme.WARN if share > 0.9 else theme.SPEED
    full = round(BAR * share)
    return Content.assemble(
        ("━" * full, color),
        ("─" * (BAR - full), theme.EDGE),
        (f" {used / 1e9:.1f} of {limit / 1e9:.1f} GB", theme.TEXT),
    )


def _text(told: str) -> Content:
    return Content.styled(one_line(told), theme.TEXT)
