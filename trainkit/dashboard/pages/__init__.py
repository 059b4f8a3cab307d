"""The pages behind the number keys, beside the overview. `PAGES` is their order; a page is one file here."""

from __future__ import annotations

from trainkit.dashboard.pages.checkpoints import CheckpointsPage
from trainkit.dashboard.pages.compare import ComparePage
from trainkit.dashboard.pages.data import DataPage
from trainkit.dashboard.pages.layers import LayersPage
from trainkit.dashboard.pages.logs import LogsPage
from trainkit.dashboard.pages.metrics import MetricsPage
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.pages.recipe import RecipePage
from trainkit.dashboard.pages.samples import SamplesPage
from trainkit.dashboard.pages.system import SystemPage
from trainkit.errors import TrainkitError

__all__ = ["KEYS", "NAMES", "PAGES", "Page", "require_page"]

#: The pages in the order of their keys, from 2 on; 1 is the overview.
PAGES: tuple[type[Page], ...] = (
    MetricsPage,
    SystemPage,
    SamplesPage,
    DataPage,
    LogsPage,
    CheckpointsPage,
    RecipePage,
    ComparePage,
    LayersPage,
)
NAMES = ("overview", *(page.NAME for page in PAGES))
#: The key of each page: a digit for the first nine, a letter for others that have one.
KEYS = {page.NAME: page.KEY for page in PAGES if page.KEY} | {name: str(n) for n, name in enumerate(NAMES[:9], 1)}


def require_page(name: str) -> None:
    """Check that there is a page of this name, or that it is empty.

    Raises:
        TrainkitError: there is none.
    """
    if name and name not in NAMES:
        raise TrainkitError(f"there is no page {name!r}; the pages are {', '.join(NAMES)}")
