"""`trainkit check`: everything that is wrong with a recipe, without training anything. Imports no numpy and no jax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.cli.arguments import Mode, Overrides, RecipePath, check_machine, memory_of_machine
from trainkit.errors import TrainkitError
from trainkit.text import plural

if TYPE_CHECKING:
    from trainkit.recipe.toml.load import Loaded

BRIEF = True


def check(recipe: RecipePath, overrides: Overrides = None, mode: Mode = "full") -> str:
    """Report everything that is wrong with a recipe."""
    from trainkit.hub.recipe import load, notes
    from trainkit.plan import Devices, KeptByAttention, make_plan, steps_need_data
    from trainkit.plan.size import check_estimate
    from trainkit.recipe.toml.load import check_lengths, locate_error

    loaded = load(recipe, overrides or [], mode=mode)
    parsed = loaded.recipe
    check_lengths(loaded, mode)
    check_machine(loaded)
    _check_files(loaded)
    _check_documents(loaded)
    if parsed.sweep is not None:
        from trainkit.search.study import check_values
        from trainkit.search.trials import TrialRecipes

        check_values(TrialRecipes(recipe, overrides or [], mode, loaded), parsed.sweep)
    summary = [f"{parsed.model.type}"]
    trained = parsed.tokenizer.train if parsed.tokenizer else None
    if (trained is not None or not parsed.data.is_text) and not steps_need_data(parsed):
        vocab_size = trained.vocab_size if trained else 0
        try:
            # for one device; `trainkit plan`, which knows the devices, says whether the batch divides over more
            devices, least = Devices(count=parsed.parallel.fsdp), KeptByAttention(probabilities=False)
            plan = make_plan(parsed, devices=devices, vocab_size=vocab_size, data=None, attention=least)
            check_estimate(plan, memory=memory_of_machine)
        except TrainkitError as error:
            raise locate_error(error, loaded) from error
        unit = "examples" if plan.sequence_length is None else "tokens"
        summary += [
            f"{plan.parameters:,} parameters",
            f"{plural(plan.steps, 'step')} of {plan.tokens_per_step:,} {unit}",
        ]
    else:
        summary.append(_length(loaded))
    lines = [f"ok: {parsed.run.name}: {', '.join(summary)}", *(f"note: {note}" for note in notes(parsed))]
    lines += [f"plugin: {plugin}" for plugin in loaded.plugins]
    return "\n".join(lines)


def _check_files(loaded: Loaded) -> None:
    """Raise one TrainkitError about all local files that the recipe names and that do not exist."""
    from trainkit.data.sources.missing import missing_files
    from trainkit.recipe.toml.load import locate_error

    errors = list(missing_files(loaded.recipe))
    if errors:
        # the problem has the key
        places = [locate_error(error, loaded).where.removesuffix(f": {error.where}") for error in errors]
        more = [f"\n{place}: {error.problem}" for place, error in zip(places[1:], errors[1:], strict=True)]
        hint = "; ".join(dict.fromkeys(error.hint for error in errors))
        raise TrainkitError(errors[0].problem + "".join(more), where=places[0], hint=hint)


def _check_documents(loaded: Loaded) -> None:
    """Raise TrainkitError where the default task, which nobody chose, does not learn from the training documents."""
    from trainkit.recipe.spec import type_of
    from trainkit.recipe.toml.load import locate_error
    from trainkit.recipe.union import members_at

    recipe = loaded.recipe
    try:
        recipe.task.check_documents(recipe.data.train)
    except TrainkitError as error:
        able = [task for task in members_at(type(recipe), "task") if recipe.model.kind in task.models]
        fitting = [type_of(task) for task in able if all(map(task.learns_from, recipe.data.train))]
        named = " or ".join(f'[task] type = "{name}"' for name in fitting)
        fix = f"write {named}" if named else "add a task with a plugin"
        problem = f"{error.problem}, and is the default"
        hint = f"to train with them, {fix}; they can be cached and inspected without"
        raise locate_error(TrainkitError(problem, where=error.where, hint=hint), loaded) from None


def _length(loaded: Loaded) -> str:
    train = loaded.recipe.train
    for unit, number in (("steps", train.steps), ("tokens", train.tokens)):
        if number is not None:
            return plural(number, unit.removesuffix("s"))
    return "1 epoch" if train.epochs == 1 else f"{train.epochs:g} epochs"
