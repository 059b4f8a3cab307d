"""`trainkit verify`: whether checkpoints are as they were written."""

from __future__ import annotations

from trainkit.cli.arguments import RunOrStep
from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.text import neutralise


def verify(run: RunOrStep) -> int:
    """Compare every byte of checkpoints with their checksums.

    Without STEP, also compare the run's recipe, tokenizer and log with its newest checkpoint.
    """
    from trainkit.checkpoint import store
    from trainkit.run.recorded_inputs import find_problems
    from trainkit.rundir.find import find_run

    directory, step = find_run(run)
    found = store.step_directories(directory) if step is None else [store.directory_of(directory) / str(step)]
    if not found or not all(path.is_dir() for path in found):
        steps = ", ".join(path.name for path in store.step_directories(directory)) or "none"
        problem = "the run has no checkpoint yet" if step is None else f"there is no checkpoint of step {step}"
        raise TrainkitError(f"{problem}; there are: {steps}", where=str(directory))
    damaged = 0
    for path in found:
        problems = store.verify(path)
        if problems and step is None and not path.is_dir():
            print(f"{path}: removed by the trainer meanwhile", flush=True)
            continue
        damaged += bool(problems)
        # at once: reading a large checkpoint takes minutes
        print(f"{path}: {'damaged' if problems else 'ok'}", flush=True)
        for problem in problems:
            print(f"  {neutralise(problem)}", flush=True)
    problems = find_problems(directory) if step is None else []
    for problem in problems:
        print(neutralise(problem), flush=True)
    return FAILED if damaged or problems else DONE
