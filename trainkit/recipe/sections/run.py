"""[run] and [plugins]: what a run is called, where it is and begins, and what it imports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from trainkit.recipe.spec import Seed, Spec


class Run(Spec):
    """The run's name, seed and directory."""

    name: str | None = None
    """Name of the run and of its directory. If absent, it is the recipe file's name without `.toml`."""
    seed: Seed = 0
    """Seed that all random numbers derive from."""
    directory: str = "runs"
    """Directory that holds the runs."""
    parameters_from: str | None = None
    """A run, `RUN/STEP` or `RUN/best`, with whose parameters this run begins: at step 0, with a new optimizer state. If
    absent, they are random or those of `model.pretrained`."""
    average_from: bool = False
    """Whether it begins with the average that `[average]` of that run kept, in place of its parameters."""
    deterministic: bool = False
    """Whether a GPU uses only kernels that give the same bits every time, which may be slower. A CPU always does."""

    def check_adapter(self) -> None:
        """Raise ValueError if the run begins with a whole model, which cannot be the frozen one of an adapter."""
        if self.parameters_from is not None:
            raise ValueError(
                "run.parameters_from begins with a whole model, and [adapter] trains beside a frozen one: export"
                ' that run with trainkit export, and name the export in [model] pretrained = "DIRECTORY"'
            )

    @model_validator(mode="after")
    def _an_average_is_of_a_run(self) -> Run:
        if self.average_from and self.parameters_from is None:
            raise ValueError("run.average_from = true is about run.parameters_from, which is not given")
        return self

    @field_validator("name")
    @classmethod
    def _names_a_directory(cls, name: str | None) -> str | None:
        if name is not None and (name.strip(".") == "" or any(c in "/\\" or not c.isprintable() for c in name)):
            raise ValueError("the name of a run is the name of its directory: no slash, not empty, not only dots")
        return name


class Plugins(Spec):
    """Python files that add optimizers, schedules, models and other types to the recipe language.

    They are imported, which runs them: name only files that you trust.
    """

    files: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Paths, relative to the recipe that names them. Nothing else is imported."""
    digests: tuple[str, ...] = ()
    """SHA-256 of each file at the last start of the run. trainkit fills them in; on resume it reports the files that
    have changed."""
