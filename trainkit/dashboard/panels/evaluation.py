"""The newest evaluation of a task with classes or numbers, as text: the best checkpoint, the metrics, the scores of
each class, the confusion matrix, and the worst predictions."""

from __future__ import annotations

from pathlib import Path

import tomli
from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import cell
from trainkit.dashboard.results import SetResult, read_results
from trainkit.events.view import View
from trainkit.rundir.checkpoint_files import BestMark, best
from trainkit.rundir.owed import falls_on
from trainkit.text import format_quantity, plural

#: Cells of a bar, and of the name of a class; the smallest and the largest width of a column of the matrix.
BAR, NAME, LEAST, MOST = 10, 18, 4, 10
#: With more classes than this, those with the worst F1 come first.
MANY_CLASSES = 10
#: Lines of confusions where the matrix is too wide, and of the worst predictions.
MOST_CONFUSIONS, MOST_WORST = 20, 20
#: Scores of a class below these have the colour of a warning, and of an error.
POOR, BAD = 0.7, 0.4


class Evaluations:
    """The newest results of a run, its best checkpoint, and its patience."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._seen: object = None
        self._step: int | None = None
        self.results: list[SetResult] = []
        self.best: BestMark | None = None
        self.metric: str | None = None
        """The metric by which the recipe chooses the best checkpoint."""
        self.patience: int | None = None
        """How many evaluations in a row may be no better than the best one before the run ends."""
        self.every: int | None = None
        """Steps between the evaluations of the recipe: patience counts no others."""
        self.steps: list[int] = []
        """The steps of evaluations, in increasing order."""

    def has_new(self, view: View) -> bool:
        """Return whether the run was evaluated, or ended, since the last call, so that `read` finds more."""
        self.steps = sorted({marker.step for marker in view.markers if marker.kind == "evaluation"})
        self._step = max([view.step, *self.steps[-1:]])
        seen, self._seen = self._seen, (len(view.markers), view.finished)
        return bool(self.steps) and seen != self._seen

    def read(self) -> None:
        """Read the files of the run, as far as they can be read."""
        self.results, self.best = read_results(self._directory, until=self._step), best(self._directory)
        try:
            recipe = tomli.loads((self._directory / "recipe.toml").read_text(encoding="utf-8"))
            patience, every = (recipe.get("evaluate", {}).get(key) for key in ("patience", "every"))
            metric = recipe.get("checkpoint", {}).get("best", {}).get("metric")
        except (OSError, ValueError, AttributeError):
            return
        self.patience, self.every = (value if isinstance(value, int) else None for value in (patience, every))
        self.metric = metric if isinstance(metric, str) else None


def evaluation_lines(found: Evaluations, width: int) -> list[Content]:
    """Return the lines to show in `width` cells; none if there are no results."""
    if not found.results:
        return []
    lines = _best_lines(found)
    for result in found.results:
        lines += [Content(""), cell(f"{result.name} at step {result.step:,}", f"bold {theme.BRIGHT}"), _metrics(result)]
        if result.confused:
            lines += [Content(""), *_class_lines(result), Content(""), *_confusion_lines(result, width)]
        if result.worst:
            lines += [Content(""), *_worst_lines(result, width)]
    return lines


def _best_lines(found: Evaluations) -> list[Content]:
    mark, patience = found.best, found.patience
    if mark is None:
        why = f"none by {found.metric} is on disk" if found.metric else "add [checkpoint] best to the recipe for one"
        return [cell(f"no best checkpoint: {why}", theme.DIM)]
    lines = [cell(f"★ best checkpoint: step {mark.step:,}, {mark.metric} {format_quantity(mark.value)}", theme.GOOD)]
    if patience is not None:
        since = sum(step > mark.step and falls_on(step, found.every) for step in found.steps)
        color = theme.WARN if 2 * since >= patience else theme.DIM
        lines.append(cell(f"  patience: {since} of {plural(patience, 'evaluation')} without a better one", color))
    return lines


def _metrics(result: SetResult) -> Content:
    """Return the metrics of the whole set, without those of single classes."""
    whole = [f"{name} {format_quantity(value)}" for name, value in result.metrics.items() if "/" not in name]
    return cell(" · ".join(whole), theme.TEXT)


def _class_lines(result: SetResult) -> list[Content]:
    """Return F1, precision and recall of each class; the worst first if there are many."""
    rows = []
    for name in result.classes:
        right = result.confused[name, name]
        labelled = sum(count for (label, _), count in result.confused.items() if label == name)
        called = sum(count for (_, predicted), count in result.confused.items() if predicted == name)
        precision, recall = right / max(called, 1), right / max(labelled, 1)
        rows.append((2 * right / max(labelled + called, 1), precision, recall, labelled, name))
    many = len(rows) > MANY_CLASSES
    head = f"{'class, worst first' if many else 'class':<{NAME}} {'F1':>5} {'':<{BAR}} precision recall  items"
    lines = [cell(head, theme.DIM)]
    for f1, precision, recall, labelled, name in sorted(rows) if many else rows:
        filled = round(f1 * BAR)
        text = (
            f"{_cut(name, NAME):<{NAME}} {f1:5.2f} {'█' * filled}{'·' * (BAR - filled)}"
            f" {precision:9.2f} {recall:6.2f} {labelled:6,}"
        )
        lines.append(cell(text, _color(f1)))
    return lines


def _color(score: float) -> str:
    return theme.BAD if score < BAD else theme.WARN if score < POOR else theme.TEXT


def _confusion_lines(result: SetResult, width: int) -> list[Content]:
    """Return the confusion matrix, or the most frequent confusions if it is too wide."""
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
    lines = [cell(f"most frequent of {len(wrong):,} confusions (the matrix is too wide for the terminal)", theme.DIM)]
    for count, label, predicted in wrong[:MOST_CONFUSIONS]:
        share = f"{count / totals[label]:.0%} of {_cut(label, NAME)}"
        lines.append(cell(f"{count:>6,}  {_cut(label, NAME)} → {_cut(predicted, NAME)}  ({share})", theme.TEXT))
    return lines


def _worst_lines(result: SetResult, width: int) -> list[Content]:
    """Return two lines for each: what was predicted, and the text where it is known."""
    measure = "probability of the predicted class" if result.confused else "distance"
    lines = [cell(f"worst predictions ({measure}): label → predicted", theme.DIM)]
    for each in result.worst[:MOST_WORST]:
        said = f"{_cut(each.label, NAME)} → {_cut(each.predicted, NAME)}"
        lines.append(Content.assemble(cell(f"{each.wrong:6.3g}  {said}  ", theme.TEXT), cell(each.place, theme.DIM)))
        if each.text:
            lines.append(cell(f"{'':8}{_cut(each.text, width - 8)}", theme.BRIGHT))
    return lines


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
