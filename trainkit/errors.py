"""The one exception that people are meant to read.

`TrainkitError` is for mistakes and misfortunes that a person can act on; `assert` is for our own. The command line
prints it on stderr without a traceback and exits with `exit_code`.
"""

from __future__ import annotations

#: Exit codes of every command (the contract is in docs/architecture.md).
DONE, FAILED, WRONG_INPUT, STOPPED_EARLY, INTERRUPTED = 0, 1, 2, 75, 130


class TrainkitError(Exception):
    """What went wrong, where, and how to mend it.

    Args:
        problem: what was found and why it cannot be used; several lines where there are several problems.
        where: `file:line`, a key, a step or a path; empty where the problem says it all.
        hint: what to do now; commands are written as they are typed.
        exit_code: `WRONG_INPUT` (the recipe or the call is wrong) or `FAILED` (it went wrong while running).
    """

    def __init__(self, problem: str, *, where: str = "", hint: str = "", exit_code: int = WRONG_INPUT) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        head = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{head}\nhint: {self.hint}" if self.hint else head
