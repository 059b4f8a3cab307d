"""[plugins]: Python files outside the package that add to the recipe language."""

from __future__ import annotations

from trainkit.recipe.spec import Spec


class Plugins(Spec):
    """Python files that add optimizers, schedules, models and other types to the recipe language.

    They are imported, which runs them: name only files that you trust.
    """

    files: tuple[str, ...] = ()
    """Paths, relative to the recipe that names them. Nothing else is imported."""
    digests: tuple[str, ...] = ()
    """SHA-256 of each file at the last start of the run. trainkit fills them in; on resume it reports the files that
    have changed."""
