"""The model card tells how a model was made, and nothing about the machine."""

from __future__ import annotations

import pytest

from trainkit.hub.card import card


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('path = "/home/me/books/*.txt"', 'path = "…/*.txt"'),
        ('directory = "/runs"  # /home/me/recipe.toml:3', 'directory = "…/runs"  # …/recipe.toml:3'),
        ('path = "hf://datasets/me/it"', 'path = "hf://datasets/me/it"'),
        ('path = "https://there/books.txt"', 'path = "https://there/books.txt"'),
        ('path = "books/here.txt"', 'path = "books/here.txt"'),
    ],
)
def test_of_paths_in_the_recipe_the_last_part_is_left(written: str, told: str) -> None:
    made = card(name="n", family="gpt2", step=1, parameters=1, recipe=written, base=None, evaluations={})
    assert f"```toml\n{told}\n```" in made
