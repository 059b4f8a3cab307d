"""The newest evaluation of a task with classes or numbers, as text: metrics, the best checkpoint, the classes, how they
are confused, and the worst predictions first."""

from __future__ import annotations

from pathlib import Path

import tomli
from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import cell
from trainkit.dashboard.results import SetResult, read_results
from trainkit.events.view import View
from trainkit.rundir.checkpoint_files import BestMark, best
from trainkit.text import format_quantity, plural

#: Cells of a bar; of the name of a class at most; the least and the most cells of a column of the matrix.
BAR, NAME, LEAST, MOST = 10, 18, 4, 10
#: Lines of confusions where the matrix is too wide, and of the worst predictions.
MOST_CONFUSIONS, MOST_WORST = 20, 20
#: Scores of a class below these are warnings, and worse.
POOR, BAD = 0.7, 0.4


class Evaluations:
    """The newest results of a run, its best checkpoint, and how long it waits for a better one."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._seen: object = None
        self.results: list[SetResult] = []
        self.best: BestMark | None = None
        self.patience: int | None = None
        """Evaluations that may be no better than the best before the run ends."""
        self.steps: list[int] = []
        """Those at which sets were evaluated, in increasing order."""

    def has_new(self, view: View) -> bool:
        """Return whether the run was evaluated, or ended, since the last call: then `read` finds more."""
        self.steps = sorted({marker.step for marker in view.markers if marker.kind == "evaluation"})
        seen, self._seen = self._seen, (len(view.markers), view.finished)
        return bool(self.steps) and seen != self._seen

    def read(self) -> None:
        """Read the files of the run, as far as they can be read."""
        self.results, self.best = read_results(self._directory), best(self._directory)
        try:
            recipe = tomli.loads((self._directory / "recipe.toml").read_text(encoding="utf-8"))
            patience = recipe.get("evaluate", {}).get("patience")
        except (OSError, ValueError, AttributeError):
            return
        self.patience = patience if isinstance(patience, int) else None


def evaluation_lines(found: Evaluations, width: int) -> list[Content]:
    """Return the lines to show in `width` cells; none where there are no results."""
    if not found.results:
        return []
    lines = _best_lines(found)
    for result in found.results:
        lines += [Content(""), cell(f"{result.name} at step {result.step:,}", f"bold {theme.BRIGHT}"), _metrics(result)]
        if result.confused:
            lines += [Content(""), *_class_lines(result), Content(""), *_confusion_lines(result, width)]
        if result.worst:
            lines += [Content(""), *_worst_lines(result)]
    return lines


def _best_lines(found: Evaluations) -> list[Content]:
    mark, patience = found.best, found.patience
    if mark is None:
        return [cell("no best checkpoint: [checkpoint] best in the recipe chooses one by a metric", theme.DIM)]
    lines = [cell(f"★ best checkpoint: step {mark.step:,}, {mark.metric} {format_quantity(mark.value)}", theme.GOOD)]
    if patience is not None:
        since = sum(step > mark.step for step in found.steps)
        color = theme.WARN if 2 * since >= patience else theme.DIM
        lines.append(cell(f"  patience: {since} of {plural(patience, 'evaluation')} without a better one", color))
    return lines


def _metrics(result: SetResult) -> Content:
    """Return the metrics that are one number each."""
    whole = [f"{name} {format_quantity(value)}" for name, value in result.metrics.items() if "/" not in name]
    return cell(" · ".join(whole), theme.TEXT)


def _class_lines(result: SetResult) -> list[Content]:
    """Return precision, recall and F1 of each class; of many classes the worst first."""
    rows = []
    for name in result.classes:
        right = result.confused[name, name]
        labelled = sum(count for (label, _), count in result.confused.items() if label == name)
        called = sum(count for (_, predicted), count in result.confused.items() if predicted == name)
        precision, recall = right / max(called, 1), right / max(labelled, 1)
        rows.append((2 * right / max(labelled + called, 1), precision, recall, labelled, name))
    many = len(rows) > MOST
    wide = min(NAME, max(len(row[-1]) for row in rows))
    head = f"{'class, worst first' if many else 'class':<{max(wide, 18)}} {'F1':>5} {'':<{BAR}} precision recall  items"
    lines = [cell(head, theme.DIM)]
    for f1, precision, recall, labelled, name in sorted(rows) if many else rows:
        filled = round(f1 * BAR)
        text = (
            f"{_cut(name, max(wide, 18)):<{max(wide, 18)}} {f1:5.2f} {'█' * filled}{'·' * (BAR - filled)}"
            f" {precision:9.2f} {recall:6.2f} {labelled:6,}"
        )
        lines.append(cell(text, _color(f1)))
    return lines


def _color(score: float) -> str:
    return theme.BAD if score < BAD else theme.WARN if score < POOR else theme.TEXT


def _confusion_lines(result: SetResult, width: int) -> list[Content]:
    """Return the confusion matrix; where it is too wide, the commonest confusions."""
    classes = result.classes
    names = min(NAME, max(map(len, classes)))
    column = min(MOST, max(LEAST, *(len(name) for name in classes), len(str(max(result.confused.values())))))
    column = max(LEAST, min(column, (width - names) // len(classes) - 1))
    if names + len(classes) * (column + 1) > width:
        return _confusions(result)
    head = "".join(f" {_cut(name, column):>{column}}" for name in classes)
    lines = [cell("label down, predicted across", theme.DIM), cell(" " * names + head, theme.DIM)]
    for label in classes:
        total = sum(result.confused[label, predicted] for predicted in classes)
        parts = [cell(f"{_cut(label, names):<{names}}", theme.DIM)]
        for predicted in classes:
            count = result.confused[label, predicted]
            share = count / max(total, 1)
            color = theme.GOOD if label == predicted else theme.BAD if share >= 0.2 else theme.WARN
            parts.append(cell(f" {count:>{column},}", color if count else theme.FAINT))
        lines.append(Content.assemble(*parts))
    return lines


def _confusions(result: SetResult) -> list[Content]:
    totals = {
        name: sum(count for (label, _), count in result.confused.items() if label == name) for name in result.classes
    }
    wrong = [(count, *pair) for pair, count in result.confused.most_common() if pair[0] != pair[1]]
    lines = [cell(f"commonest of {len(wrong):,} confusions (the matrix is wider than the terminal)", theme.DIM)]
    for count, label, predicted in wrong[:MOST_CONFUSIONS]:
        share = f"{count / totals[label]:.0%} of {_cut(label, NAME)}"
        lines.append(cell(f"{count:>6,}  {_cut(label, NAME)} → {_cut(predicted, NAME)}  ({share})", theme.TEXT))
    return lines


def _worst_lines(result: SetResult) -> list[Content]:
    measure = "probability of what was predicted" if result.confused else "distance"
    lines = [cell(f"worst predictions ({measure}): label → predicted", theme.DIM)]
    for each in result.worst[:MOST_WORST]:
        said = f"{_cut(each.label, NAME)} → {_cut(each.predicted, NAME)}"
        lines.append(Content.assemble(cell(f"{each.wrong:6.3g}  {said}  ", theme.TEXT), cell(each.place, theme.DIM)))
    return lines


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
