"""What ends an answer is the special token that the template writes after it, never an ordinary one."""

from __future__ import annotations

import likeness
import pytest
from tokenizers import Tokenizer

from trainkit.data.documents.chat_template import ChatTemplate, resolve_template
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer, load
from trainkit.infer.text_format import end_of_answer
from trainkit.recipe.sections.document import Chat

TEMPLATES = {
    "llama-2": likeness.LLAMA_2_TEMPLATE,
    "mistral": likeness.MISTRAL_TEMPLATE,
    "chatml": likeness.CHATML_TEMPLATE,
    "llama-3": likeness.LLAMA_3_TEMPLATE,
    "gemma": likeness.GEMMA_TEMPLATE,
}
CHATTING = [name for name, one in likeness.FAMILIES.items() if one().template is not None]


def with_tokens(codec: LoadedTokenizer, *names: str) -> LoadedTokenizer:
    """The same with more special tokens."""
    tokenizer = Tokenizer.from_file(str(codec.path))
    tokenizer.add_special_tokens(list(names))
    return LoadedTokenizer(codec.path, tokenizer.to_str().encode())


@pytest.mark.parametrize("name", CHATTING)
def test_an_answer_ends_with_the_token_that_the_family_ends_it_with(tmp_path, name):
    one = likeness.FAMILIES[name]()
    codec = load(likeness.write(name, tmp_path))
    assert end_of_answer(resolve_template(Chat(type="chat").chat_template, codec.path), codec) == (
        (one.id(one.end_of_turn),),
        (),
    )


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_no_template_ends_an_answer_with_an_ordinary_token_whatever_the_tokenizer(tmp_path, name, template):
    codec = load(likeness.write(name, tmp_path))
    beside = (("bos_token", "<s>"), ("eos_token", codec.decode([codec.end_of_text])))
    tokens, words = end_of_answer(ChatTemplate(TEMPLATES[template], template, beside), codec)
    assert set(tokens) <= set(codec.special_tokens.values())
    if "eos_token" in TEMPLATES[template]:  # also after a blank, as Llama 2 writes it
        assert (tokens, words) == ((codec.end_of_text,), ())


def test_words_before_a_special_token_end_an_answer_and_that_token_does_not(tmp_path):
    codec = with_tokens(load(likeness.write("gpt2", tmp_path)), "<|user|>")
    written = "{% for m in messages %}{{ '[' + m.content + '] END <|user|>' }}{% endfor %}"
    assert end_of_answer(ChatTemplate(written, "words"), codec) == ((), ("] END",))
    turn = "{% for m in messages %}{{ m.content + ' \n<|user|>' }}{% endfor %}"
    assert end_of_answer(ChatTemplate(turn, "turn"), codec) == ((codec.special_tokens["<|user|>"],), ())


def test_a_token_after_the_last_answer_alone_ends_answers_beside_the_words_after_others(tmp_path):
    codec = load(likeness.write("llama-2", tmp_path))
    written = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}"
        "{{ '</s>' if loop.last and m.role == 'assistant' else '\n' }}{% endfor %}"
    )
    assert end_of_answer(ChatTemplate(written, "last"), codec) == ((codec.end_of_text,), ("\nuser:",))


def test_what_is_no_token_of_the_tokenizer_s_is_words(tmp_path):
    codec = load(likeness.write("gemma", tmp_path))
    written = "{% for m in messages %}{{ m.content + '</s>\n<b>' }}{% endfor %}"
    assert end_of_answer(ChatTemplate(written, "html"), codec) == ((), ("</s>\n<b>",)), "HTML ends no answer"
