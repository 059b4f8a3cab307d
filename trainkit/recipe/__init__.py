"""Recipes: frozen specs, one file a section; read by `load`, explained by `diagnose`."""

from trainkit.recipe.recipe import Recipe

__all__ = ["Recipe"]
