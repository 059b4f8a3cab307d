"""Recipes: frozen specs (`sections/`, `families/`), and how they are loaded, diagnosed and written (`toml/`)."""

from trainkit.recipe.recipe import Recipe

__all__ = ["Recipe"]
