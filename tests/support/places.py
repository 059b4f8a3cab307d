"""Where the parts of a checkout are that tests read, and how long a test waits."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parent.parent
FIXTURES = SUPPORT.parent / "fixtures"
#: Seconds after which what a test waits for counts as never to come. A slow machine takes a while.
LIMIT = 240.0
