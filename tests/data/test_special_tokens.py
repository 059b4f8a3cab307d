"""Which tokens begin and end a text is what a tokenizer's own files say; what they are called comes last."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import data_room as room
import likeness
import pytest
from tokenizers import Tokenizer, processors

from trainkit.data.cache import build
from trainkit.data.tokenizer.vocabulary import load
from trainkit.errors import TrainkitError
from trainkit.hub.tokenizer import write
from trainkit.infer.text_format import keep_tokenizer

NAMING = ("tokenizer_config.json", "special_tokens_map.json")


def names(codec) -> tuple[str | None, str]:
    begin = codec.beginning_of_text
    return None if begin is None else codec.decode([begin]), codec.decode([codec.end_of_text])


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_texts_begin_and_end_as_the_files_of_each_family_say(tmp_path, name):
    one = likeness.FAMILIES[name]()
    codec = load(likeness.write(name, tmp_path))
    assert names(codec) == (one.begin, one.end)
    assert names(pickle.loads(pickle.dumps(codec))) == (one.begin, one.end), "a worker sees others"


@pytest.mark.parametrize("name", ["llama-2", "mistral", "gemma", "llama-3", "unigram", "wordpiece"])
def test_without_any_file_beside_it_a_tokenizer_itself_says_how_texts_begin_and_end(tmp_path, name):
    one = likeness.FAMILIES[name]()
    everything = ("tokenizer_config.json", "generation_config.json")
    found = names(load(likeness.write(name, tmp_path, without=everything)))
    assert found == (one.begin, "<|end_of_text|>" if name == "llama-3" else one.end)


def test_gemma_s_html_tags_neither_begin_nor_end_a_text_even_where_nothing_but_names_is_left(tmp_path):
    content = json.loads(likeness.gemma().content)
    content["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    codec = load(tmp_path / "tokenizer.json")
    assert names(codec) == ("<bos>", "<eos>") and codec.padding == 0
    assert not {"<s>", "</s>"} & codec.special_tokens.keys()


@pytest.mark.parametrize("first", [*NAMING, "generation_config.json", "config.json", None])
def test_of_several_files_the_first_in_the_order_of_the_docs_counts(tmp_path, first):
    path = likeness.write("gemma", tmp_path, without=("tokenizer_config.json", "generation_config.json"))
    files = {
        "tokenizer_config.json": {"eos_token": {"content": "<unused0>"}},
        "special_tokens_map.json": {"eos_token": "<mask>"},
        "generation_config.json": {"eos_token_id": [6, 7]},
        "config.json": {"eos_token_id": 7},
    }
    wanted = dict(
        zip([*files, None], ["<unused0>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<eos>"], strict=True)
    )
    order = list(wanted)
    for file in order[order.index(first) : -1]:
        (tmp_path / file).write_text(json.dumps(files[file]))
    assert names(load(path, config=True))[1] == wanted[first]


def test_a_config_json_counts_in_a_directory_and_not_beside_a_file_that_is_named_by_itself(tmp_path):
    path = likeness.write("gemma", tmp_path, without=("tokenizer_config.json", "generation_config.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    ends = [
        room.open_tokenizer(room.recipe(tmp_path, "x", tokenizer={"path": str(named)})).end_of_text
        for named in (tmp_path, path)
    ]
    assert ends == [7, 1]


def test_a_begin_that_the_tokenizer_s_own_files_deny_is_none_whatever_a_config_says(tmp_path):
    codec = load(likeness.write("qwen", tmp_path))
    assert codec.beginning_of_text is None and codec.padding == likeness.qwen().id("<|endoftext|>")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<|im_start|>"}')
    assert names(load(codec.path))[0] == "<|im_start|>", "null in one file goes before a name in another"


def test_ids_that_a_config_has_for_a_larger_vocabulary_are_not_meant(tmp_path):
    path = likeness.write("gpt2", tmp_path, without=NAMING)
    (tmp_path / "generation_config.json").write_text(
        '{"eos_token_id": 50256, "bos_token_id": true, "pad_token_id": -1}'
    )
    assert names(load(path)) == ("<|endoftext|>", "<|endoftext|>")


def test_a_token_that_is_named_and_not_there_is_an_error_with_its_place(tmp_path):
    path = likeness.write("gpt2", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    with pytest.raises(TrainkitError, match=r"'<.im_end.>', which the tokenizer does not have") as caught:
        load(path)
    assert caught.value.where == f"{tmp_path / 'tokenizer_config.json'}:eos_token"


def test_documents_end_as_the_files_say_and_other_ends_are_other_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a <s>key</s> value"}) + "\n")
    found = []
    for end in ("<eos>", "<end_of_turn>"):
        path = likeness.write("gemma", tmp_path / "made")
        (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        recipe = room.recipe(tmp_path, tmp_path / "a.jsonl", tokenizer={"path": str(path.parent)})
        built = build.build(recipe)
        found.append(room.tokens_of(built.train).tolist())
    gemma = likeness.gemma()
    assert [ids[-1] for ids in found] == [gemma.id("<eos>"), gemma.id("<end_of_turn>")]
    assert found[0][:-1] == found[1][:-1] and gemma.id("</s>") in found[0][:-1]


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_what_is_unknown_is_what_the_tokenizer_itself_writes_for_it(tmp_path, name):
    codec = load(likeness.write(name, tmp_path))
    unknown = {"unigram": "<unk>", "wordpiece": "[UNK]"}.get(name)
    if unknown is not None:
        assert codec.unknown in codec.encode("𝕏") and codec.decode([codec.unknown]) == unknown
    else:
        assert codec.unknown not in codec.encode("𝕏")


def test_a_token_that_is_put_after_a_text_and_none_before_it_is_its_end(tmp_path):
    tokenizer = Tokenizer.from_str(room.tokenizer_json())
    tokenizer.add_special_tokens(["<|stop|>", "<s>"])
    after = processors.TemplateProcessing("$A <|stop|>", None, [("<|stop|>", tokenizer.token_to_id("<|stop|>"))])
    tokenizer.post_processor = after
    tokenizer.save(str(path := Path(tmp_path) / "tokenizer.json"))
    assert names(load(path)) == ("<s>", "<|stop|>")


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_a_run_and_its_export_know_the_tokens_that_a_model_s_config_alone_names(tmp_path, name):
    source, run, out = tmp_path / "source", tmp_path / "run", tmp_path / "out"
    path = likeness.write(name, source, without=("tokenizer_config.json", "generation_config.json"))
    middle = 50
    said = {"bos_token_id": middle, "eos_token_id": [middle + 1, middle + 2], "pad_token_id": middle + 3}
    (source / "config.json").write_text(json.dumps(said))
    recipe = room.recipe(tmp_path, "x", tokenizer={"path": str(source)})
    codec = room.open_tokenizer(recipe)
    run.mkdir()
    out.mkdir()
    keep_tokenizer(codec, recipe, run)
    write(out, run, load(run / path.name), begin=(), ends=(middle + 1,), template=None, context_length=64, pad=None)
    for found in (codec, load(run / path.name), load(out / path.name)):
        assert (found.beginning_of_text, found.end_of_text, found.padding) == (middle, middle + 1, middle + 3)
