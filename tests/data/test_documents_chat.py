"""A conversation becomes the text that its template writes, and only what the assistant says is learned."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import data_room as room
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from trainkit.data.documents import pieces as pieces_module
from trainkit.data.documents.chat_template import EXAMPLE, ChatTemplate, render, resolve_template
from trainkit.data.documents.conversations import make
from trainkit.data.documents.pieces import Piece, RowContext
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.source_file import read
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document import Chat
from trainkit.recipe.sections.document_spec import ChatTemplateChoice
from trainkit.recipe.sections.source import Files

TOKENS = (("bos_token", "<s>"), ("eos_token", "</s>"))
CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' ~ message.role ~ '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content ~ '<|im_end|>\\n' }}{% endgeneration -%}
{% else %}
{{- message.content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] != 'assistant' %}
        {{- message['content'] | trim + '<|eot_id|>' }}
        {%- continue %}
    {%- endif %}
    {%- generation %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{- ' ' ~ message.content ~ eos_token -}}{%- endgeneration -%}
{%- else -%}
{{- '[INST] ' ~ message.content ~ ' [/INST]' -}}
{%- endif -%}
{%- endfor -%}
"""
#: Each with what it writes where the assistant says something.
TEMPLATES = {
    "chatml": (CHATML, lambda content: content + "<|im_end|>\n"),
    "llama": (LLAMA, lambda content: content.strip() + "<|eot_id|>"),
    "mistral": (MISTRAL, lambda content: " " + content + "</s>"),
}
#: Leaves out what the assistant has thought in all turns but the last.
THINKING = """\
{% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}
{%- if loop.last %}{{ message.content }}{% else %}{{ message.content.split('</think>')[-1] }}{% endif %}
{{- '<|im_end|>\\n' }}{% endgeneration -%}
{% else %}
{{- message.content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def plain(template: str) -> str:
    """The same without generation blocks: an `if` in their place leaves the spaces as they are."""
    opened = re.sub(r"(\{%-? )generation( ?-?%\})", r"\1if true\2", template)
    return re.sub(r"(\{%-? )endgeneration( ?-?%\})", r"\1endif\2", opened)


def a_template(text: str) -> ChatTemplate:
    return ChatTemplate(text, "here", TOKENS)


def a_chat(**fields: Any) -> Chat:
    return Chat(type="chat", **fields)


def chosen(**fields: Any) -> ChatTemplateChoice:
    return a_chat(**fields).chat_template


def turns(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[k % 2], "content": content} for k, content in enumerate(contents)]


def make_chat(document: Chat, template: ChatTemplate, row: dict[str, Any], index: int, *, columns: bool = False):
    return make(document, row, index, RowContext(columns=columns, chat=template))


def made(text: str, messages: Any, *, index: int = 0, others: dict[str, Any] | None = None, **fields: Any):
    return make_chat(a_chat(**fields), a_template(text), {"messages": messages, **(others or {})}, index)


def learned(pieces: list[Piece] | tuple[str, str]) -> str:
    assert isinstance(pieces, list), pieces
    (piece,) = pieces
    assert piece.learned is not None
    return "".join(piece.text[begin:end] for begin, end in piece.learned)


def joined(pieces: list[Piece] | tuple[str, str]) -> str:
    assert isinstance(pieces, list), pieces
    return "".join(piece.text for piece in pieces)


#: What the assistant says, which has a text: a turn without one is refused.
answers = st.text(max_size=8).filter(str.strip)
messages_of_any_kind = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": st.text(max_size=8)})
    | st.fixed_dictionaries({"role": st.just("assistant"), "content": answers}),
    min_size=1,
    max_size=6,
)
conversations = st.builds(
    lambda before, answer, after: [*before, {"role": "assistant", "content": answer}, *after],
    messages_of_any_kind,
    answers,
    messages_of_any_kind | st.just([]),
)
templates = st.sampled_from([(kind(text), answer) for text, answer in TEMPLATES.values() for kind in (str, plain)])


@given(templates, conversations, st.sampled_from(["assistant", "last", "all"]), st.integers(0, 99))
def test_a_conversation_is_one_piece_as_the_template_writes_it(template, messages, learn, index):
    (piece,) = made(template[0], messages, learn=learn, index=index)
    assert piece.text == render(a_template(template[0]), messages)
    assert piece.bytes == len(piece.text.encode())
    assert piece.first and piece.last and piece.index == index
    assert all(begin < end for begin, end in piece.learned)
    assert all(a[1] < b[0] for a, b in pairwise(piece.learned)), "parts that meet are one"


@given(templates, conversations)
def test_all_that_the_assistant_says_and_what_ends_its_turns_is_learned_and_nothing_else(template, messages):
    text, answer = template
    said = [answer(message["content"]) for message in messages if message["role"] == "assistant"]
    assert learned(made(text, messages)) == "".join(said)
    assert learned(made(text, messages, learn="last")) == said[-1]


@given(st.sampled_from(list(TEMPLATES)), conversations, st.sampled_from(["assistant", "last", "all"]))
def test_generation_blocks_and_what_turns_add_agree(name, messages, learn):
    text, _ = TEMPLATES[name]
    assert made(text, messages, learn=learn) == made(plain(text), messages, learn=learn)


def test_the_text_of_a_template_with_generation_blocks_is_as_without_them():
    messages = turns("Who?", " Me. ", "Why?", "So.")
    for text, _ in TEMPLATES.values():
        assert render(a_template(text), messages) == render(a_template(plain(text)), messages)
    text = render(a_template(LLAMA), messages[:1], add_generation_prompt=True)
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert text == "<s>" + header.format("user") + "Who?<|eot_id|>" + header.format("assistant")


def test_a_template_that_drops_earlier_thinking_is_refused_without_generation_blocks():
    messages = turns("a", "<think>b</think>c", "d", "<think>e</think>f")
    problem, hint = made(plain(THINKING), messages)
    assert "messages[1] is another one when more turns follow" in problem
    assert "{% generation %}" in hint
    assert 'learn = "all"' in hint
    assert 'learn = "last"' in hint
    assert learned(made(plain(THINKING), messages, learn="last")) == "<think>e</think>f<|im_end|>\n"
    assert learned(made(THINKING, messages)) == "c<|im_end|>\n<think>e</think>f<|im_end|>\n"
    assert learned(made(THINKING, messages, learn="last")) == "<think>e</think>f<|im_end|>\n"


def test_a_turn_that_does_not_continue_the_text_that_asks_for_it_is_refused():
    text = plain(CHATML).replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>'")
    problem, hint = made(text, turns("a", "b"))
    assert "messages[1] does not continue the text that asks for it" in problem
    assert "{% generation %}" in hint


def test_several_blocks_in_a_turn_belong_to_its_turn():
    text = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}|{% generation %}{% generation %};{% endgeneration %}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert learned(made(text, turns("a", "b", "c", "d"))) == "b;d;"
    assert learned(made(text, turns("a", "b", "c", "d"), learn="last")) == "d;"


@pytest.mark.parametrize("change", ["| trim", "| upper | length", "| replace('\\udc01', '')"])
def test_a_block_whose_text_is_changed_behind_it_is_refused(change):
    text = (
        "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
        f"{{{{ x {change} }}}};{{% endfor %}}"
    )
    problem, _ = made(text, turns(" a ", " b "))
    assert "after a {% generation %} block" in problem


def test_a_template_whose_blocks_are_never_reached_is_refused():
    problem, hint = made(
        "{% for m in messages %}{% if m.role == 'model' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}"
        "{{ m.content }}{% endfor %}",
        turns("a", "b"),
    )
    assert problem == "the template writes nothing to learn"
    assert hint == "the template is here"


@pytest.mark.parametrize(
    ("row", "problem", "hint"),
    [
        ({"message": []}, "has no 'messages'; found: 'message'", 'did you mean "message"?'),
        ({"id": 1, "conversations": []}, "found: 'id', 'conversations'", 'did you mean "conversations"?'),
        ({"messages": "hi"}, "'messages' is a string, not a list of messages", "conversations look like"),
        ({"messages": []}, "'messages' is empty", "conversations look like"),
        ({"messages": ["hi"]}, "messages[0] is a string, not an object", "conversations look like"),
        ({"messages": [{"content": "a"}]}, "messages[0] has no role; keys found: 'content'", "look like"),
        ({"messages": [{"role": "user", "text": "a"}]}, "has no content; keys found: 'role', 'text'", "look like"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0] has no content", "look like"),
        ({"messages": [{"role": "user", "content": 1}]}, "the content of messages[0] is a number", "look like"),
        ({"messages": [{"role": [], "content": "a"}]}, "the role of messages[0] is a list", "look like"),
        ({"messages": [{"from": "alien", "value": "a"}]}, "messages[0] is from 'alien'; known are human", "look"),
        ({"messages": turns("a")}, "no turn of the assistant, and so nothing to learn; roles found: 'user'", '"all"'),
        ({"messages": turns("a", "\ud800")}, "half of a surrogate pair", ""),
        ({"messages": turns("a", "b"), "tools": "{"}, "'tools' is a string that is not JSON", ""),
        ({"messages": turns("a", "b", "c", " \n")}, "messages[3] is a turn of the assistant that is learned", "train"),
        ({"messages": turns("a", [{"type": "text", "text": ""}])}, "messages[1] is a turn", "leave such rows out"),
    ],
)
@pytest.mark.parametrize("text", [CHATML, plain(CHATML)])
def test_a_row_that_is_no_conversation_is_reported(text, row, problem, hint):
    found = make_chat(a_chat(), a_template(text), row, 0)
    assert isinstance(found, tuple)
    assert problem in found[0]
    assert hint in found[1]


def test_a_turn_without_text_is_no_mistake_where_it_is_not_learned_or_says_something_else():
    silent = {"role": "assistant", "content": ""}
    call = {**silent, "tool_calls": [{"function": {"name": "look"}}]}
    for messages, learn in (
        ([*turns("a"), {**silent, "train": False}, *turns("b", "c")], "assistant"),
        ([*turns("a"), silent, *turns("b", "c")], "last"),
        ([*turns("a"), silent], "all"),
        ([*turns("a"), call], "assistant"),
    ):
        assert isinstance(make_chat(a_chat(learn=learn), a_template(CHATML), {"messages": messages}, 0), list)


def test_what_a_template_says_against_a_conversation_is_passed_on():
    text = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools!') }}{% endif %}{% endfor %}"
    problem, hint = made(text, [*turns("a", "b"), {"role": "tool", "content": "c"}])
    assert problem == "the chat template fails on the conversation: No tools!"
    assert hint == "the template is here"
    problem, _ = made("{{ messages[7].content.x }}", turns("a", "b"))
    assert "has no element 7" in problem
    problem, _ = made("{{ messages.append(1) }}", turns("a", "b"))
    assert "unsafe" in problem, "templates run in a sandbox"


def test_sharegpt_is_read_as_well():
    shared = [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert made(CHATML, shared) == made(CHATML, [{"role": "system", "content": "s"}, *turns("a", "b")])


def test_a_row_without_the_assistant_may_be_learned_as_a_whole():
    assert learned(made(CHATML, turns("a"), learn="all")) == "<|im_start|>user\na<|im_end|>\n"


def test_a_long_turn_is_not_cut_since_that_would_change_its_tokens(monkeypatch):
    monkeypatch.setattr(pieces_module, "PIECE", 10)
    messages = turns("some words " * 5, "other words\n" * 5, "x", "y")
    pieces = made(MISTRAL, messages)
    assert joined(pieces) == render(a_template(MISTRAL), messages)
    assert learned(pieces) == " " + messages[1]["content"] + "</s>" + " y</s>"


def test_parts_are_for_templates_that_take_them_and_joined_for_those_that_do_not():
    messages = turns("ab", "cd")
    in_parts = [
        {**m, "content": [{"type": "text", "text": each, "image": None} for each in m["content"]]} for m in messages
    ]
    for text in (CHATML, plain(CHATML), LLAMA, plain(LLAMA), MISTRAL):
        assert made(text, in_parts) == made(text, messages)
    taking = (
        "{% for m in messages %}{% for part in m.content %}{% generation %}({{ part.text }}{{ 'image' in part }})"
        "{% endgeneration %}{% endfor %}{% endfor %}"
    )
    assert joined(made(taking, in_parts)) == "(aFalse)(bFalse)(cFalse)(dFalse)"
    in_parts[0]["content"].append({"type": "image"})
    problem, _ = made(CHATML, in_parts)
    assert "takes no content in parts" in problem
    problem, _ = made(plain(LLAMA).replace("| trim", ""), in_parts)
    assert "fails on the conversation" in problem


def test_other_keys_of_the_row_and_of_messages_reach_the_template():
    text = (
        "{{ tools | tojson }}{{ date }}{% for _ in range(2) %}!{% endfor %}{% for m in messages %}"
        "{% if m.tool_calls is defined %}{% generation %}{{ m.tool_calls[0].name }}{% endgeneration %}{% endif %}"
        "{{ m.content if m.content is not none }};{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "a", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]},
    ]
    others = {"tools": [{"name": "löök"}], "date": "today", "range": 7, "eos_token": "none of it"}
    pieces = made(text, messages, others=others)
    assert joined(pieces) == '[{"name": "löök"}]today!!a;look;'
    assert learned(pieces) == "look"
    assert made(text, messages, others={**others, "tools": json.dumps(others["tools"])}) == pieces
    assert joined(made(text, messages, others={"tools": ""})) == "null!!a;look;"


def test_templates_have_what_those_of_hugging_face_use():
    text = (
        "{%- if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}\n"
        "    {% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ {'a<': 1} | tojson(indent=2) }}\n"
        "    {% endfor %}\n{{ documents is none }}{{ tools is none }}{{ pad_token }}"
    )
    assert render(a_template(text), turns("a", "b")) == '26 Jul 2024{\n  "a<": 1\n}\nTrueTrue'


def test_a_template_that_is_resolved_can_be_sent_to_other_processes_and_hashed(tmp_path):
    template = resolve_template(chosen(template=CHATML), tmp_path / "tokenizer.json")
    assert pickle.loads(pickle.dumps(template)) == template
    assert hash(template) == hash(resolve_template(chosen(template=CHATML), tmp_path / "tokenizer.json"))


def test_templates_are_looked_for_in_the_recipe_then_beside_the_tokenizer(tmp_path):
    tokenizer = tmp_path / "tokenizer.json"

    def resolve(template: str | None = None) -> tuple[str, str]:
        found = resolve_template(chosen(template=template), tokenizer)
        return found.text, found.origin

    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "1{{ messages }}"}), encoding="utf-8")
    assert resolve() == ("1{{ messages }}", f"{config}:chat_template")
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": "2{{ messages }}"}]
    config.write_text(json.dumps({"chat_template": several}), encoding="utf-8")
    assert resolve() == ("2{{ messages }}", f"{config}:chat_template")
    beside = tmp_path / "chat_template.jinja"
    beside.write_text("3{{ messages }}", encoding="utf-8")
    assert resolve() == ("3{{ messages }}", str(beside))
    mine = tmp_path / "mine.jinja"
    mine.write_text("4{{ messages }}", encoding="utf-8")
    assert resolve(str(mine)) == ("4{{ messages }}", str(mine))
    assert resolve("5{{ messages }}") == ("5{{ messages }}", "document.template")


def test_special_tokens_come_from_the_files_beside_the_tokenizer(tmp_path):
    config = {"bos_token": {"content": "<b>", "lstrip": False}, "eos_token": None, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    token_map = {"eos_token": "<e>", "bos_token": "<old>", "additional_special_tokens": ["<x>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(token_map), encoding="utf-8")
    found = resolve_template(chosen(template=MISTRAL), tmp_path / "tokenizer.json")
    assert found.special_tokens == (("bos_token", "<b>"), ("eos_token", "<e>"))


def test_a_special_token_that_nothing_names_is_reported_before_the_model_never_learns_to_stop(tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    with pytest.raises(TrainkitError, match="writes bos_token, but the tokenizer's files do not define") as caught:
        resolve_template(chosen(template=MISTRAL), tokenizer)
    assert str(tmp_path / "special_tokens_map.json") in caught.value.hint
    for asking in ("{% if bos_token %}{{ bos_token }}{% endif %}", "{{ bos_token | default('') }}"):
        assert resolve_template(chosen(template=asking + "{{ messages }}"), tokenizer).special_tokens == ()
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": null, "eos_token": "</s>"}', encoding="utf-8")
    assert resolve_template(chosen(template=MISTRAL), tokenizer).special_tokens == (("eos_token", "</s>"),)


def test_without_any_template_one_is_shown_that_works(tmp_path):
    with pytest.raises(TrainkitError, match=r"neither a chat_template\.jinja nor a 'chat_template'") as caught:
        resolve_template(chosen(), tmp_path / "tokenizer.json")
    assert EXAMPLE in caught.value.hint
    template = resolve_template(chosen(template=EXAMPLE), tmp_path / "tokenizer.json")
    messages = turns("a", "b", "c", "d")
    pieces = make_chat(a_chat(), template, {"messages": messages}, 0)
    assert learned(pieces) == "b<|endoftext|>d<|endoftext|>"
    assert joined(pieces).startswith(render(template, messages[:1], add_generation_prompt=True) + "b")


@pytest.mark.parametrize(
    ("template", "problem", "where"),
    [
        ("\n{{ messages }}\n{% if %}", "not valid Jinja: ", "document.template:3"),
        ("{% for m in messages %}", "not valid Jinja: Unexpected end of template", "document.template:1"),
        ("\n{{ messages | nonsense }}", "No filter named 'nonsense'", "document.template:2"),
        ("{% generation %}{{ messages }}", "not valid Jinja: Unexpected end of template", "document.template:1"),
        ("{{ text }}", "does not use 'messages'", "document.template"),
        ("missing.jinja", "cannot read the chat template: No such file", "missing.jinja"),
    ],
)
def test_a_template_that_cannot_be_used_is_reported_at_once(tmp_path, template, problem, where):
    with pytest.raises(TrainkitError) as caught:
        resolve_template(chosen(template=template), tmp_path / "tokenizer.json")
    assert problem in caught.value.problem
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "is not JSON"), ("[]", "is a list, not an object")],
)
def test_a_damaged_configuration_is_reported(tmp_path, content, problem):
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(TrainkitError, match=problem) as caught:
        resolve_template(chosen(template=CHATML), tmp_path / "tokenizer.json")
    assert caught.value.where == str(tmp_path / "tokenizer_config.json")


def test_several_templates_without_a_default_are_reported(tmp_path: Path):
    several = {"chat_template": [{"name": "tools", "template": "x"}, {"name": "rag", "template": "y"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(several), encoding="utf-8")
    with pytest.raises(TrainkitError, match="none is named 'default': tools, rag"):
        resolve_template(chosen(), tmp_path / "tokenizer.json")


def test_neither_jinja_nor_pil_is_loaded_before_it_is_used():
    script = (
        "import sys; import trainkit.data.documents.conversations, trainkit.data.documents.images;"
        "import trainkit.data.documents.labelled;"
        "print(sorted({'jinja2', 'PIL', 'jax'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("text", [CHATML, plain(CHATML)])
@pytest.mark.parametrize("no", [{"train": False}, {"weight": 0}, {"weight": 0.0, "train": None}])
def test_a_turn_that_is_marked_so_is_not_learned_and_its_mark_is_not_for_the_template(text, no):
    messages = turns("a", "b", "c", "d", "e", "f")
    marked = [messages[0], messages[1] | {"train": True}, messages[2] | no, messages[3] | no, *messages[4:]]
    assert learned(made(text, marked)) == "b<|im_end|>\nf<|im_end|>\n"
    assert joined(made(text, marked)) == joined(made(text, messages))
    assert learned(made(text, marked, learn="last")) == "f<|im_end|>\n"
    assert learned(made(text, [*messages[:5], messages[5] | no])) == "b<|im_end|>\nd<|im_end|>\n"
    telling = "{% for m in messages %}{{ m | tojson }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert "train" not in joined(made(telling, marked)) and "weight" not in joined(made(telling, marked))


@pytest.mark.parametrize(
    ("marks", "learn", "problem"),
    [
        ({1: {"weight": 0.5}}, "assistant", "the weight of messages[1] is 0.5; it may be 0 or 1"),
        ({1: {"train": "no"}}, "assistant", "the train of messages[1] is 'no'; it may be true or false"),
        ({1: {"train": True, "weight": 0}}, "assistant", "messages[1] says both train = True and weight = 0"),
        ({0: {"train": True}}, "assistant", "messages[0] is marked as learned, but has the role 'user'"),
        ({1: {"train": False}}, "all", 'messages[1] is not to be learned, but document.learn = "all"'),
        ({1: {"train": False}}, "assistant", "'messages' has nothing to learn: train = false or weight = 0 on each"),
        ({1: {"weight": 0}}, "last", "'messages' has nothing to learn: train = false or weight = 0 on each"),
    ],
)
def test_marks_that_cannot_be_followed_are_reported(marks, learn, problem):
    messages = [message | marks.get(k, {}) for k, message in enumerate(turns("a", "b"))]
    found = made(CHATML, messages, learn=learn)
    assert isinstance(found, tuple)
    assert problem in found[0]


def test_nulls_that_a_table_stores_for_absent_keys_do_not_reach_the_template(tmp_path):
    text = "{{ tools | tojson }}{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    calls = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": [None, 2], "content": "x"}}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
            "tools": [{"name": call["name"], "parameters": {key: "int" for key in call["arguments"]}}],
        }
        for call in calls
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    stored = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert '"b": null' in json.dumps(stored[0])
    for row, kept in zip(rows, stored, strict=True):
        expected = make_chat(a_chat(), a_template(text), row, 0)
        assert make_chat(a_chat(), a_template(text), kept, 0, columns=True) == expected
        # in JSON somebody has written it
        assert "null" in joined(make_chat(a_chat(), a_template(text), kept, 0))
    (file,) = list_files(Files(path=str(tmp_path / "a.parquet"), document=a_chat()), tmp_path)
    reading = RowReading(document=a_chat(), chat=a_template(text))
    found = list(read(replace(file, reading=reading), room.never))
    assert [piece.text for piece in found] == [joined(make_chat(a_chat(), a_template(text), row, 0)) for row in rows]
