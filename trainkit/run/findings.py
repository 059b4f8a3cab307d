"""What is suspicious about the data, told in the log once it is known."""

from __future__ import annotations

from trainkit.data.cache import Cache
from trainkit.data.gate import look
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.recipe import Recipe


class Findings:
    """Looks before the first step, and again once all is tokenised where it was not."""

    def __init__(self, cache: Cache, recipe: Recipe, log: EventLog) -> None:
        self._cache, self._recipe, self._log = cache, recipe, log
        self._looked = self._done = False

    def look(self) -> None:
        """Tell what is found. Costs nothing where nothing has changed.

        Raises:
            TrainkitError: training would learn nothing, or break.
        """
        complete = self._cache.train.complete
        if self._done or (self._looked and not complete):
            return
        self._looked, self._done = True, complete
        for finding in look(self._cache, self._recipe):
            if finding.level == "error":
                raise TrainkitError(
                    finding.message,
                    where="data",
                    hint="trainkit inspect RECIPE --first 3 shows what would be learned",
                )
            if complete:
                self._log.write("log", step=self._log.step, level=finding.level, message=finding.message)
