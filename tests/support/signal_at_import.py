"""`signal_at_import.py MODULE NUMBERS ARGUMENTS …`: trainkit, which gets signals in the moment it imports a module.

NUMBERS are those of one or two signals, separated by commas; the second one comes while the first is handled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec


class SignalAtImport:
    """Is asked for every module before it is looked for."""

    def __init__(self, module: str, numbers: Sequence[int]) -> None:
        self.module, self.numbers = module, numbers

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == self.module:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), self.numbers[0])
            finally:
                for number in self.numbers[1:]:
                    os.kill(os.getpid(), number)
        return None


if __name__ == "__main__":
    _, module, numbers, *arguments = sys.argv
    sys.argv[1:] = arguments
    sys.path.pop(0)  # of this directory, as for the console script
    sys.meta_path.insert(0, SignalAtImport(module, [int(number) for number in numbers.split(",")]))
    from trainkit.entry import program

    program()
