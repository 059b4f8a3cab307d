"""The model card tells how a model was made, and nothing about the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_recipe import write

from trainkit.hub.card import Made, adapter_card, card, shareable_recipe
from trainkit.recipe.sections.adapter import Lora
from trainkit.recipe.toml.load import load

MADE = Made(
    name="n", step=1200, recipe="steps = 1200", base="them/it", evaluations={"held-out": {"loss": 1.5, "accuracy": 0.5}}
)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('data.train=[{path="/home/John Smith/it\'s/books/*.txt"}]', "…/*.txt"),
        ('data.train=[{path="file:///home/John Smith/it.txt"}]', "…/it.txt"),
        ('data.train=[{path="https://there/home/books.txt"}]', "https://there/home/books.txt"),
        ('data.train=[{type="huggingface", id="me/it"}]', "me/it"),
        ('run.directory="/home/John Smith/runs/"', "…/runs"),
    ],
)
def test_of_paths_in_the_recipe_the_last_part_is_reported(tmp_path: Path, given: str, told: str) -> None:
    path = write(tmp_path / "John Smith")
    recipe = shareable_recipe(load(path, [given]))
    assert told in recipe and "# …/sample.toml:4" in recipe and "from …/sample.toml\n" in recipe
    assert not any(part in recipe for part in ("Smith", "it's", str(tmp_path), str(Path.cwd())))


def test_cards_of_models_and_of_adapters_show_base_results_and_recipe() -> None:
    whole = card(MADE, family="llama", parameters=12_345)
    part = adapter_card(MADE, Lora(rank=4), family="llama", parameters=1234, tokenizer=False)
    for found, library in ((whole, "transformers"), (part, "peft")):
        assert found.startswith(f"---\nlibrary_name: {library}\n") and "\nbase_model: them/it\n" in found
        assert "| held-out | 1.5000 | 0.5000 |" in found and "```toml\nsteps = 1200\n```" in found
        assert "after step 1,200" in found
    assert "A llama of 12,345 parameters" in whole and "- lora\n" not in whole
    assert "An adapter (lora, rank 4) of 1,234 parameters for a llama" in part and "- lora\n" in part
    assert 'AutoTokenizer.from_pretrained("them/it")' in part


def test_the_card_of_an_adapter_that_was_trained_on_a_base_in_four_bit_says_which_base_it_is_right_on() -> None:
    card = adapter_card(MADE, Lora(base="nf4"), family="llama", parameters=1, tokenizer=False)
    assert 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"' in card and "quantization_config=" in card
    assert "on the unquantised base it answers differently" in card and "--format hf" in card
    assert "BitsAndBytes" not in adapter_card(MADE, Lora(), family="llama", parameters=1, tokenizer=False)


def test_a_card_shows_the_commands_that_changed_the_training() -> None:
    told = "after step 400: learning rate 0.5 times the schedule's"
    assert f"- {told}\n" in card(replace(MADE, commands=[told]), family="llama", parameters=1)
    assert "commands" not in card(MADE, family="llama", parameters=1)


def test_an_adapter_s_card_loads_the_tokenizer_from_where_it_is_and_names_no_directory_of_this_machine() -> None:
    part = adapter_card(replace(MADE, base=None), Lora(), family="llama", parameters=1, tokenizer=True)
    assert "base_model" not in part and 'AutoTokenizer.from_pretrained("PATH")' in part
    assert 'AutoModelForCausalLM.from_pretrained("BASE")' in part
