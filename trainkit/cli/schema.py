"""`trainkit schema`: the JSON schema of recipes. Imports no numpy and no jax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

BRIEF = True


def schema(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE",
            help="Include what the plugins of this recipe add; the rest of it may be unfinished.",
            show_default=False,
        ),
    ] = None,
) -> str:
    """Print the JSON schema of recipes, for editors."""
    from trainkit.recipe import Recipe
    from trainkit.recipe.toml.load import load_language
    from trainkit.recipe.toml.schema import schema

    language = load_language(recipe) if recipe else Recipe
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(language)}, indent=2)
