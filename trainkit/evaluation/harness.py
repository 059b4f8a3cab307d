"""Tasks of lm-eval, EleutherAI's evaluation harness (Gao et al. 2021), on a run's model. Needs the extra `lm-eval`."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.task import Task as HarnessTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluate_run import recipe_to_evaluate
from trainkit.evaluation.harness_model import ROWS, HarnessModel
from trainkit.evaluation.results import write_results
from trainkit.infer.trained_model import open_run


@dataclass(frozen=True)
class HarnessOptions:
    """What of lm-eval is wanted."""

    tasks: tuple[str, ...]
    """Names of tasks, groups or tags; `*` stands for any letters."""
    path: Path | None = None
    """A directory with tasks of one's own, as YAML."""
    limit: int | None = None
    """The number of documents of each task; all where not given."""
    fewshot: int | None = None
    """The number of examples before each question; the task's own where not given."""
    chat: bool = False
    """Whether the model's chat template writes the questions."""


def evaluate_tasks(
    directory: Path,
    step: int | None,
    options: HarnessOptions,
    *,
    average: bool | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None],
) -> tuple[int, dict[str, dict[str, float]]]:
    """Evaluate a run's checkpoint on tasks of lm-eval, write `results/lm-eval%2FTASK-STEP.json` for each, and return
    the checkpoint's step and the metrics of each task by `lm-eval/TASK`.

    Args:
        step: None for the newest checkpoint.
        average: as for `weights_of`.
        overrides: `evaluate.batch_size=N`, the number of texts at once.

    Raises:
        TrainkitError: there is no such checkpoint or task, the model writes no text, a task asks for what is not
            supported, or its data cannot be read.
    """
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    manager, names = _find_tasks(options)
    rows = recipe_to_evaluate(directory, overrides).evaluate.batch_size or ROWS
    trained = open_run(directory, step, average=average)
    assert trained.step is not None, "a run's model is that of a step"
    model = HarnessModel(trained, rows=rows, warn=warn)
    if options.chat:
        trained.template()
    tasks = _load(manager, names, options)
    for task in _leaves(tasks):
        _check(task, model)
    try:
        found = simple_evaluate(
            model,
            tasks=tasks,
            num_fewshot=options.fewshot,
            limit=options.limit,
            task_manager=manager,
            apply_chat_template=options.chat,
            log_samples=False,
        )
    except OSError as error:
        raise _unreadable(error, options) from error
    assert found is not None, "there is one process"
    results: dict[str, dict[str, float]] = {}
    for task, values in found["results"].items():
        name = f"lm-eval/{task}"
        results[name] = {f"{name}/{key}": value for key, value in _metrics(values)}
        write_results(directory, name, trained.step, results[name], details=_details(found, task, options))
    return trained.step, results


def _find_tasks(options: HarnessOptions) -> tuple[TaskManager, list[str]]:
    """Return where lm-eval finds tasks, and the names of the wanted ones. Raises TrainkitError for an unknown one."""
    path = options.path
    if path is not None and not path.is_dir():
        raise TrainkitError("there is no such directory", where=f"--lm-eval-path {path}")
    # reading lm-eval's thousands of tasks takes seconds
    for defaults in (False, True) if path is not None else (True,):
        manager = TaskManager(include_path=str(path) if path else None, include_defaults=defaults)
        matches = {task: manager.match_tasks([task]) for task in options.tasks}
        names = list(dict.fromkeys(name for found in matches.values() for name in found))
        if all(matches.values()) and (defaults or all(name in manager.task_index for name in _members(manager, names))):
            break
    for task, found in matches.items():
        if not found:
            raise _unknown_task(f"lm-eval has no task '{task}'", task, manager)
    return manager, names


def _members(manager: TaskManager, names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the tasks and groups that some groups have as members, also of groups in groups; not those of
    tasks that a group defines itself."""
    waiting, seen = list(names), set(names)
    while waiting:
        for member in _listed(manager, waiting.pop()):
            if isinstance(member, dict):
                name = None if "dataset_path" in member else member.get("group") or member.get("task")
            else:
                name = member
            if isinstance(name, str) and name not in seen:
                yield name
                seen.add(name)
                waiting.append(name)


def _listed(manager: TaskManager, name: str) -> list[Any]:
    """Return the members of a group as its YAML lists them; an empty list for a task."""
    entry = manager.task_index.get(name)
    members = (entry.cfg or {}).get("task") if entry is not None else None
    return members if isinstance(members, list) else []


def _load(manager: TaskManager, names: Sequence[str], options: HarnessOptions) -> list[HarnessTask | Group]:
    """Return the tasks and groups of these names, with their data. Raises TrainkitError if one cannot be loaded."""
    for group in names:
        for member in _listed(manager, group):
            if isinstance(member, str) and member not in manager.task_index:
                raise _unknown_task(f"the group '{group}' has an unknown task '{member}'", member, manager)
    try:
        loaded = manager.load(names)
    except OSError as error:  # no connection among them
        raise _unreadable(error, options) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # any mistake in a YAML file
        problem = f"lm-eval cannot load the tasks: {type(error).__name__}: {error}"
        raise TrainkitError(problem, where=_option(options), hint="check the YAML files of the tasks") from error
    groups = loaded.get("groups", {})
    inside = {name for group in groups.values() for name in group.child_names}
    found: dict[str, HarnessTask | Group] = {**loaded["tasks"], **groups}
    return [one for name, one in found.items() if name not in inside]


def _leaves(tasks: Sequence[HarnessTask | Group]) -> Iterator[HarnessTask]:
    """Yield the tasks, and those of the groups."""
    for one in tasks:
        yield from one.get_all_tasks() if isinstance(one, Group) else (one,)


def _check(task: HarnessTask, model: HarnessModel) -> None:
    """Raise TrainkitError if a task asks for what the model does not do, before anything is computed."""
    where = f"--lm-eval {task.task_name}"
    if getattr(task, "UNSAFE_CODE", False):
        raise TrainkitError("the task runs code that the model writes, which trainkit does not do", where=where)
    if getattr(task, "MULTIMODAL", False):
        raise TrainkitError("the task has images or sounds, and the model reads text", where=where)
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        model.check_rolling(where)
    if task.OUTPUT_TYPE == "generate_until":
        model.generation(task.get_config("generation_kwargs") or {}, where=where)


def _unknown_task(problem: str, name: str, manager: TaskManager) -> TrainkitError:
    near = difflib.get_close_matches(name, manager.all_tasks, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "lm-eval ls tasks   lists them"
    return TrainkitError(problem, where="--lm-eval", hint=hint)


def _unreadable(error: OSError, options: HarnessOptions) -> TrainkitError:
    return TrainkitError(f"the data of a task cannot be read: {error}", where=_option(options))


def _option(options: HarnessOptions) -> str:
    return f"--lm-eval {','.join(options.tasks)}"


def _metrics(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a task by `METRIC`, or `METRIC/FILTER` where a filter has been at the answers."""
    for key, value in values.items():
        metric, comma, filter_ = key.partition(",")
        if comma and isinstance(value, int | float):
            yield (metric if filter_ == "none" else f"{metric}/{filter_}"), float(value)


def _details(found: Mapping[str, Any], task: str, options: HarnessOptions) -> dict[str, Any]:
    """Return how the values of a task were obtained."""
    return {
        "lm_eval": version("lm_eval"),
        "task_version": found["versions"].get(task),
        "fewshot": found["n-shot"].get(task),
        "documents": found["n-samples"].get(task, {}).get("effective"),
        "limit": options.limit,
        "chat_template": options.chat,
    }
