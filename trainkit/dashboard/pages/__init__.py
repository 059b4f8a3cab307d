"""The pages behind the number keys, beside the overview. `PAGES` is their order; a page is one file here."""

from __future__ import annotations

from trainkit.dashboard.pages.logs import Logs
from trainkit.dashboard.pages.page import Page

__all__ = ["PAGES", "Page"]

#: The pages in the order of their keys, from 2 on; 1 is the overview.
PAGES: tuple[type[Page], ...] = (Logs,)
