"""What a row becomes: a text, a template, a prompt with its response; each mistake is told."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.data.documents import templates
from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.documents.pieces import PIECE, Piece, Refused
from trainkit.data.documents.templates import RowReading, check, make_document, missing_column, needed_keys, parse
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document import Chat, Prompt, Template
from trainkit.recipe.sections.document_spec import Document
from trainkit.recipe.sections.labelled_documents import Image, Labelled, QuestionInContext, Tagged

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def pieces_of(reading: RowReading, row: dict[str, Any]) -> list[Piece]:
    found = make_document(reading, row, 7)
    assert isinstance(found, list), found
    assert [piece.first for piece in found] == [True] + [False] * (len(found) - 1)
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    assert all(piece.index == 7 for piece in found)
    assert all(piece.bytes == len(piece.text.encode()) for piece in found)
    return found


def refused(reading: RowReading, row: dict[str, Any]) -> Refused:
    found = make_document(reading, row, 0)
    assert isinstance(found, Refused), found
    return found


@given(a=ANY_TEXT, b=ANY_TEXT)
def test_texts_of_several_keys_are_joined_by_an_empty_line(a, b):
    (piece,) = pieces_of(RowReading(keys=("b", "a")), {"a": a, "b": b, "c": None})
    assert piece.text == f"{b}\n\n{a}"
    assert piece.learn


@given(values=st.lists(ANY_TEXT, min_size=2, max_size=2), glue=ANY_TEXT)
def test_a_template_is_its_text_with_the_rows_values_whatever_is_in_them(values, glue):
    template = "{a}" + glue.replace("{", "{{").replace("}", "}}") + "{b c}"
    text = "".join(
        p.text for p in pieces_of(RowReading(document=template_of(template)), {"a": values[0], "b c": values[1]})
    )
    assert text == values[0] + glue + values[1]


def template_of(text: str) -> Template:
    return Template(type="template", template=text)


def test_numbers_of_a_row_are_written_in_a_template_and_other_things_are_not():
    reading = RowReading(document=template_of("{n}"))
    for value, text in ((3, "3"), (0.5, "0.5"), (Decimal("1.10"), "1.10")):
        assert pieces_of(reading, {"n": value})[0].text == text
    for wrong, called in ((None, "null"), (True, "a boolean"), ([1], "a list"), ({}, "an object"), (b"", "bytes")):
        assert refused(reading, {"n": wrong}).problem == f"'n' is {called}, neither a string nor a number"


def test_an_unknown_key_is_reported_with_the_keys_there_are_and_the_nearest():
    row = {"question": "q", "answer": "a"}
    found = refused(RowReading(document=template_of("{questions}")), row)
    assert found.problem == "has no 'questions'; found: 'question', 'answer'"
    assert 'did you mean "question"? document.template' in found.hint
    found = refused(RowReading(document=Prompt(type="prompt", prompt="{question}", response="{answers}")), row)
    assert 'did you mean "answer"? document.response' in found.hint
    assert refused(RowReading(keys=("text",)), {"body": ""}).hint == 'did you mean "body"? text_key names it'


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{a", "the '{' at character 1 belongs to no key"),
        ("a}", "the '}' at character 2 belongs to no key"),
        ("{}", "the '{' at character 1 belongs to no key"),
        ("{a{b}}", "the '{' at character 1 belongs to no key"),
        ("{{a}}", "no key in braces"),
        ("", "no key in braces"),
    ],
)
def test_a_template_that_cannot_be_understood_is_reported_before_anything_is_read(template, problem):
    documents: list[Document] = [template_of(template), Prompt(type="prompt", prompt="{a}", response=template)]
    for document in documents:
        with pytest.raises(TrainkitError, match=problem) as caught:
            check(document)
        assert caught.value.where == "data.train"
    check(Prompt(type="prompt", prompt="the same each time", response="{a}"))


def test_braces_are_written_twice():
    assert parse("{{{a}}}") == (("{", False), ("a", True), ("}", False))


@given(question=ANY_TEXT, answer=ANY_TEXT.filter(str.strip))
def test_of_a_prompt_only_the_response_is_learned(question, answer):
    document = Prompt(type="prompt", prompt="{q}", response="{a}")
    (piece,) = pieces_of(RowReading(document=document), {"q": question, "a": answer})
    assert piece.text == question + answer
    assert piece.learned == ((len(question), len(piece.text)),)


def test_a_long_prompt_and_a_long_response_are_not_cut_since_that_would_change_their_tokens():
    document = Prompt(type="prompt", prompt="{q}", response="{a}")
    row = {"q": "q" * (PIECE + 1), "a": "a" * (2 * PIECE + 1)}
    (piece,) = pieces_of(RowReading(document=document), row)
    assert piece.learned == ((PIECE + 1, 3 * PIECE + 2),)


def test_an_empty_response_is_refused():
    document = Prompt(type="prompt", prompt="{q}", response=" {a}\n")
    assert refused(RowReading(document=document), {"q": "x", "a": ""}).problem == "has an empty response"


def test_half_of_a_surrogate_pair_is_reported_with_its_key():
    row = {"a": "fine", "b": "\ud800", "c": 1}
    pair = Labelled(type="labelled", texts=("a", "b"), label="c")
    for reading in (RowReading(keys=("a", "b")), RowReading(document=template_of("{a}{b}")), RowReading(document=pair)):
        assert refused(reading, row).problem == "'b' has half of a surrogate pair, which is no text"


def test_the_characters_of_the_whole_document_count_when_short_and_long_ones_are_left_out():
    document = Prompt(type="prompt", prompt="{q}", response="{a}")
    reading = RowReading(document=document, shortest=4, longest=5)
    for lengths, expected in (((1, 2), "fewer than min_characters = 4"), ((3, 3), "more than max_characters = 5")):
        found = refused(reading, {"q": "é" * lengths[0], "a": "é" * lengths[1]})
        assert found.filtered
        assert found.problem == f"has {sum(lengths)} characters, {expected}"
    assert pieces_of(reading, {"q": "ab", "a": "cd"})[0].text == "abcd"


def test_the_keys_that_are_needed_are_those_that_documents_are_made_of():
    def needed(document: Document) -> tuple[str, ...] | None:
        return needed_keys(RowReading(document=document))

    assert needed_keys(RowReading(keys=("a", "b"))) == ("a", "b")
    assert needed(template_of("{b}{a}{b}")) == ("b", "a")
    assert needed(Prompt(type="prompt", prompt="{a}", response="{b}{a}")) == ("a", "b")
    assert needed(Labelled(type="labelled", texts=("a", "b"), label="c")) == ("a", "b", "c")
    assert needed(Image(type="image", label=False)) == ("image",)
    assert needed(Chat(type="chat")) is None


def test_the_signature_distinguishes_what_makes_other_documents_and_nothing_else():
    readings = [
        RowReading(),
        RowReading(keys=("a",)),
        RowReading(keys=("a", "b")),
        RowReading(document=template_of("{a}")),
        RowReading(document=template_of("{b}")),
        RowReading(document=Prompt(type="prompt", prompt="{a}", response="{a}")),
        RowReading(shortest=1),
        RowReading(longest=1),
        RowReading(dtype="uint16"),
        RowReading(document=Chat(type="chat", template="a.jinja")),
        RowReading(document=Chat(type="chat", template="{{ messages }}")),
        RowReading(document=Chat(type="chat", template="a.jinja"), chat=ChatTemplate("{{ messages }}", "a.jinja")),
    ]
    signatures = [str(reading.signature) for reading in readings]
    assert len(set(signatures)) == len(readings)
    moved = RowReading(document=Chat(type="chat", template="/b.jinja"), chat=ChatTemplate("{{ messages }}", "/b.jinja"))
    assert moved.signature == readings[-1].signature, "what is in the file counts, and not where it is"
    assert RowReading(keys=("a",)).signature == RowReading(keys=("a",)).signature


def test_documents_that_are_learned_in_part_are_known_by_how_they_become_tokens(monkeypatch):
    documents = [Prompt(type="prompt", prompt="{a}", response="{a}"), Chat(type="chat"), template_of("{a}")]
    before = [RowReading(document=document).signature for document in documents]
    monkeypatch.setattr(templates, "_LEARNED_IN_PART", "another way")
    after = [RowReading(document=document).signature for document in documents]
    assert [a != b for a, b in zip(before, after, strict=True)] == [True, True, False]


def test_a_cache_of_questions_whose_tokens_had_one_answer_each_is_not_used():
    question, tagged = QuestionInContext(type="question"), Tagged(type="tagged")
    before = [[[], each.model_dump(mode="json"), None, None, "", None, None] for each in (question, tagged)]
    kept = [*before[0], templates._LEARNED_IN_PART, templates._TEXTS_ARE_DIVIDED]
    assert RowReading(document=question).signature == [*kept, question.read_as] and question.read_as
    assert RowReading(document=tagged).signature == [*before[1], templates._LEARNED_IN_PART]


@pytest.mark.parametrize("nothing", [{}, {"input": None}, {"input": ""}, {"input": " \n"}])
def test_a_section_of_a_template_is_written_where_the_row_has_a_value_for_its_key(nothing):
    reading = RowReading(document=template_of("{a}{?input}, {input} {{x}}{/input}{!input} alone{/input}."))
    assert pieces_of(reading, {"a": "q", "input": "i"})[0].text == "q, i {x}."
    assert pieces_of(reading, {"a": "q", "input": 0})[0].text == "q, 0 {x}."
    assert pieces_of(reading, {"a": "q"} | nothing)[0].text == "q alone."
    assert missing_column(reading, ["a"]) is None, "a table may lack the column"
    assert missing_column(reading, ["input"]) is not None
    assert needed_keys(reading) == ("a", "input")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{a}{?b}c", "the section of 'b' is not ended by {/b}"),
        ("{a}{/b}", "the '{/b}' at character 4 is out of place: it ends nothing"),
        ("{?a}{?b}{/b}{/a}", "the '{?b}' at character 5 is out of place: {/a} is missing before it"),
        ("{?a}{/b}", "the '{/b}' at character 5 is out of place: {/a} is missing before it"),
    ],
)
def test_a_section_that_is_not_ended_is_reported_before_anything_is_read(template, problem):
    with pytest.raises(TrainkitError) as caught:
        check(template_of(template))
    assert problem in caught.value.problem
