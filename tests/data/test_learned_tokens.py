"""A text that is learned in part is tokenised as a whole, in training as in use, and as transformers does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data_room as room
import likeness
import numpy as np
import pytest
from reference import Reference

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.shards import LEARNED
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.chat_template import resolve_template
from trainkit.data.show import show
from trainkit.data.tokenizer import vocabulary
from trainkit.infer.text_format import Conversation
from trainkit.recipe.sections.document import Chat

NO_BLOCKS = {name: make().template for name, make in likeness.FAMILIES.items()}
#: For those that have no template of their own.
PLAIN = (
    "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
BLOCKS = {
    "llama-2": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + m.content + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<start_of_turn>model\n' }}"
    "{% generation %}{{ m.content | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<start_of_turn>' + m.role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "qwen": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
}
MIXED = (
    "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TALKS = [
    ["key: value", "value: key"],
    [
        "how many cats are there?",
        "there are 42 cats\n\nand a dog",
        "  and dogs ",
        " naïve 𝕏 🙂 dogs ",
        "why?",
        "  def x",
    ],
    ["Ωmega 🙂", "🙂 is it", "<s> </s>?", "the <s>cat</s> sat"],
]
CONVERSATIONS = [
    [{"role": ("user", "assistant")[k % 2], "content": content} for k, content in enumerate(contents)]
    for contents in TALKS
]


def family(name: str, directory: Path, template: str | None) -> Path:
    """A family's files with this template; where they name no token that ends a text, with one."""
    path = likeness.write(name, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = {"eos_token": likeness.FAMILIES[name]().end} | config | {"chat_template": template or PLAIN}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def trained_on(
    directory: Path, tokenizer: Path, rows: list[dict[str, Any]], **data: Any
) -> list[tuple[list[int], list[int]]]:
    """The ids of each document, and which of them are learned."""
    room.write_rows(directory / "rows.jsonl", rows)
    source = {"path": str(directory / "rows.jsonl"), "document": data.pop("document", {"type": "chat"})}
    encoding = {"type": "pad", "bos": False, "eos": False} | data.pop("encoding", {})
    recipe = room.recipe(
        directory, source, tokenizer={"path": str(tokenizer)}, encoding=encoding, shuffle=False, **data
    )
    return list(_documents(caches.build(recipe)))


def _documents(cache: Cache) -> Iterator[tuple[list[int], list[int]]]:
    for number, section in enumerate(cache.train.sections):
        arrays = cache.train.arrays(number)
        begins = [0, *arrays.ends[:-1].tolist()]
        for begin, end in zip(begins, arrays.ends.tolist(), strict=True):
            yield arrays.tokens[begin:end].tolist(), (arrays.marks[begin:end] & LEARNED).tolist()
        assert section.shard.learned == int((arrays.marks & LEARNED).sum())


@pytest.mark.parametrize(
    ("name", "template"),
    [
        *((name, template) for name, template in NO_BLOCKS.items()),
        *((name, BLOCKS.get(name, MIXED)) for name in likeness.FAMILIES),
    ],
    ids=[*(f"{name}-turns" for name in NO_BLOCKS), *(f"{name}-blocks" for name in likeness.FAMILIES)],
)
def test_what_is_learned_of_a_conversation_is_what_transformers_says_and_chat_asks_with_the_same_tokens(
    tmp_path: Path,
    reference: Reference,
    name: str,
    template: str | None,
) -> None:
    path = family(name, tmp_path / name, template)
    # WordPiece leaves spaces out, and transformers loses what is learned where it begins with one
    conversations = [[m | {"content": m["content"].strip()} for m in messages] for messages in CONVERSATIONS]
    conversations = conversations if name == "wordpiece" else CONVERSATIONS
    expected = reference.learned(tmp_path / name, conversations)
    found = trained_on(tmp_path, path, [{"messages": messages} for messages in conversations])
    for (ids, mask), one in zip(found, expected, strict=True):
        assert ids == one["ids"]
        assert mask == one["mask"]
        assert 0 < sum(mask) < len(mask)
    codec, jinja = vocabulary.load(path), resolve_template(Chat(type="chat").chat_template, path)
    for messages, one in zip(conversations, expected, strict=True):
        asked = Conversation(jinja, codec)
        for (question, answer), ids in zip(
            zip(messages[::2], messages[1::2], strict=True), one["prompts"], strict=True
        ):
            assert asked.prompt(question["content"]) == ids
            asked.add(question["content"], answer["content"])


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_a_prompt_and_its_response_have_the_tokens_of_the_whole_text(tmp_path: Path, name: str) -> None:
    path = likeness.write(name, tmp_path / name)
    tokenizer = likeness.FAMILIES[name]().tokenizer
    pairs = [("key:", " value"), ("key: ", "value"), ("question", "s: 42"), ("", "cat"), ("naïve 🙂", "🙂 𝕏")]
    document = {"type": "prompt", "prompt": "{q}", "response": "{a}"}
    found = trained_on(tmp_path, path, [{"q": q, "a": a} for q, a in pairs], document=document)
    for (ids, mask), (prompt, response) in zip(found, pairs, strict=True):
        whole = tokenizer.encode(prompt + response, add_special_tokens=False)
        assert ids == whole.ids
        # a token that has characters of both is learned
        assert mask == [int(end > len(prompt)) for _, end in whole.offsets]


def test_no_space_comes_between_what_is_learned_and_what_is_not(tmp_path: Path) -> None:
    """What was seen with Llama's tokenizer: `:▁ ▁ value`."""
    path = likeness.write("llama-2", tmp_path / "llama-2")
    document = {"type": "prompt", "prompt": "{q}: ", "response": "{a}"}
    (found,) = trained_on(tmp_path, path, [{"q": "key", "a": "value"}], document=document)
    tokens = [likeness.llama_2().tokenizer.id_to_token(id_) for id_ in found[0]]
    assert "".join(tokens) == "▁key:▁value"


def test_a_part_that_begins_or_ends_with_what_the_tokenizer_leaves_out_is_what_is_left_of_it(tmp_path: Path) -> None:
    path = likeness.write("wordpiece", tmp_path / "wordpiece")
    template = "{% for m in messages %}{% generation %}{{ ' ' + m.content + '\n' }}{% endgeneration %}: {% endfor %}"
    document = {"type": "chat", "template": template}
    (found,) = trained_on(
        tmp_path, path, [{"messages": [{"role": "assistant", "content": "the cat"}] * 2}], document=document
    )
    assert found[1] == [1, 1, 0, 1, 1, 0]


def test_a_last_character_of_several_tokens_is_learned_with_all_of_them(tmp_path: Path) -> None:
    path = likeness.write("gemma", tmp_path / "gemma")
    document = {"type": "prompt", "prompt": "🙂", "response": "🙂"}
    (found,) = trained_on(tmp_path, path, [{"q": 1}], document=document | {"response": "{q}🙂"})
    assert found[1] == [0] * 4 + [1] * 5


@pytest.mark.parametrize("name", ["gpt2", "llama-3"])
def test_spaces_that_a_post_processor_leaves_out_of_offsets_are_learned(tmp_path: Path, name: str) -> None:
    content = json.loads(likeness.FAMILIES[name]().content)
    for part in (content["post_processor"], *content["post_processor"].get("processors", [])):
        if "trim_offsets" in part:
            part["trim_offsets"] = True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    document = {"type": "prompt", "prompt": "{q}", "response": "{a}"}
    (found,) = trained_on(tmp_path, path, [{"q": "key", "a": "\n\nvalue  "}], document=document)
    assert vocabulary.load(path).decode([i for i, learn in zip(*found, strict=True) if learn]) == "\n\nvalue  "


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_a_token_that_the_template_writes_is_not_put_around_the_conversation_again(
    tmp_path: Path, bos: bool, eos: bool
) -> None:
    path = family("mistral", tmp_path / "mistral", BLOCKS["mistral"])
    rows = [{"messages": CONVERSATIONS[0]}]
    (found,) = trained_on(tmp_path, path, rows, encoding={"bos": bos, "eos": eos})
    one = likeness.mistral()
    assert [found[0].count(one.id("<s>")), found[0].count(one.id("</s>"))] == [1, 1]
    assert found[1][-1] == 1 and found[1][0] == 0


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_inspect_shows_the_tokens_as_they_are(tmp_path: Path, name: str) -> None:
    path = family(name, tmp_path / name, BLOCKS.get(name, MIXED))
    room.write_rows(tmp_path / "rows.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    source = {"path": str(tmp_path / "rows.jsonl"), "document": {"type": "chat"}}
    recipe = room.recipe(
        tmp_path,
        source,
        tokenizer={"path": str(path)},
        encoding={"type": "pad"},
        sequence_length=256,
        batch_size=3,
        shuffle=False,
    )
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    for row, shown in enumerate(show(cache, data, 0)):
        (piece,) = shown.pieces
        batch = data.batch(0)
        tokens = np.append(batch["tokens"][row], batch["targets"][row, -1:])[piece.first : piece.end - 1].tolist()
        text = "".join(text for text, _ in piece.runs)
        assert text.startswith(cache.tokenizer.decode(tokens).rstrip("\ufffd"))
        if name not in ("wordpiece", "unigram"):  # these lose some of it
            # with Llama's tokenizer special tokens within a text have a space behind them
            said = "".join(text for text, learned in piece.runs if learned).replace(" ", "")
            assert all(m["content"].replace(" ", "") in said for m in CONVERSATIONS[row][1::2])
