"""Where the parts of a checkout are that tests read."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parent.parent
FIXTURES = SUPPORT.parent / "fixtures"
