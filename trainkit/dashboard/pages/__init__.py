"""The pages behind the number keys, beside the overview. `PAGES` is their order; a page is one file here."""

from __future__ import annotations

from trainkit.dashboard.pages.checkpoints import Checkpoints
from trainkit.dashboard.pages.compare import Compare
from trainkit.dashboard.pages.data import Data
from trainkit.dashboard.pages.logs import Logs
from trainkit.dashboard.pages.metrics import Metrics
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.pages.recipe import Recipe
from trainkit.dashboard.pages.samples import Samples
from trainkit.dashboard.pages.system import System

__all__ = ["PAGES", "Page"]

#: The pages in the order of their keys, from 2 on; 1 is the overview.
PAGES: tuple[type[Page], ...] = (Metrics, System, Samples, Data, Logs, Checkpoints, Recipe, Compare)
