"""The model card tells how a model was made, and nothing about the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainkit.hub.card import Made, adapter_card, card
from trainkit.recipe.adapter import Lora

MADE = Made(
    name="n", step=1200, recipe="steps = 1200", base="them/it", evaluations={"held-out": {"loss": 1.5, "accuracy": 0.5}}
)


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
    made = card(replace(MADE, recipe=written), family="gpt2", parameters=1)
    assert f"```toml\n{told}\n```" in made


def test_cards_of_models_and_of_adapters_tell_base_results_and_recipe() -> None:
    whole = card(MADE, family="llama", parameters=12_345)
    part = adapter_card(MADE, Lora(rank=4), family="llama", parameters=1234, tokenizer=False)
    for found, library in ((whole, "transformers"), (part, "peft")):
        assert found.startswith(f"---\nlibrary_name: {library}\n") and "\nbase_model: them/it\n" in found
        assert "| held-out | 1.5000 | 0.5000 |" in found and "```toml\nsteps = 1200\n```" in found
        assert "after step 1,200" in found
    assert "A llama of 12,345 parameters" in whole and "- lora\n" not in whole
    assert "An adapter (lora, rank 4) of 1,234 parameters for a llama" in part and "- lora\n" in part
    assert 'AutoTokenizer.from_pretrained("them/it")' in part


def test_an_adapter_s_card_loads_the_tokenizer_from_where_it_is_and_names_no_directory_of_this_machine() -> None:
    part = adapter_card(replace(MADE, base=None), Lora(), family="llama", parameters=1, tokenizer=True)
    assert "base_model" not in part and 'AutoTokenizer.from_pretrained("PATH")' in part
    assert 'AutoModelForCausalLM.from_pretrained("BASE")' in part
