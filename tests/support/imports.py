"""Which modules a command loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {"numpy", "jax", "jaxlib", "equinox", "optax", "tensorstore", "tokenizers", "pyarrow"}
HEAVY |= {"textual", "aim", "datasets"}

REPORT = """
import sys, json
print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)
"""


def loaded(code: str, directory: Path) -> set[str]:
    """The top-level modules in a process that ran `code`."""
    child = subprocess.run(
        [sys.executable, "-c", code + REPORT], cwd=directory, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return (
        f"import sys\nsys.argv = {['trainkit', *arguments]!r}\nfrom trainkit.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code"
    )
