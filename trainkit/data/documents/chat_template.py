"""Chat templates: found beside the tokenizer or in the recipe, compiled once, run in Jinja's sandbox.

They are those of Hugging Face's tokenizers, with all that `apply_chat_template` of transformers gives them, its block
`{% generation %}…{% endgeneration %}` too. They come with a model from anywhere, hence the sandbox and its limits
(`template_sandbox.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.data.hub_files import read_object
from trainkit.data.problems import NO_TEXT
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document_spec import ChatTemplateChoice

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2 import Template as Jinja
    from jinja2.nodes import Template as Tree

#: The time that templates get. With a real clock texts would change every day, so that a cache made on two days would
#: not be consistent. (It is the date that Llama 3.1's template writes without a clock.)
_NOW = datetime(2024, 7, 26)
#: Mark the blocks of `{% generation %}`: halves of surrogate pairs, which no text contains.
BEGIN, END = "\udc00", "\udc01"
#: Special tokens that a template may assume the tokenizer has.
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
EXAMPLE = """\
{% for m in messages %}
{{ "### " + m.role + "\\n" }}
{%- if m.role == "assistant" %}
{% generation %}{{ m.content + "<|endoftext|>" }}{% endgeneration %}
{% else %}
{{- m.content }}
{%- endif %}
{{ "\\n\\n" }}
{%- endfor %}
{% if add_generation_prompt %}{{ "### assistant\\n" }}{% endif %}
"""


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template as plain strings, which can be sent to other processes and hashed."""

    text: str
    """Jinja."""
    origin: str
    """Its place, as errors name it."""
    special_tokens: tuple[tuple[str, str], ...] = ()
    """What it may write, such as `("eos_token", "</s>")`, sorted."""


@dataclass(frozen=True)
class _Compiled:
    plain: Jinja
    marked: Jinja | None
    """The same with `BEGIN` and `END` around what generation blocks enclose; None where it has none."""
    uses: frozenset[str]
    """The names that it does not set itself."""
    needs: frozenset[str]
    """Those of them that it does not ask for first."""


def resolve_template(chosen: ChatTemplateChoice, tokenizer_path: Path) -> ChatTemplate:
    """Return the recipe's template, or else the one beside the `tokenizer.json`, with the tokenizer's special tokens.

    Raises:
        TrainkitError: there is none, it cannot be read, it is not Jinja, it does not use `messages`, or it writes a
            special token that the tokenizer's files do not name.
    """
    config = read_object(tokenizer_path.with_name("tokenizer_config.json"), missing_ok=True)
    map_path = tokenizer_path.with_name("special_tokens_map.json")
    named = [
        (key, value["content"] if isinstance(value, dict) and "content" in value else value)
        for file in (read_object(map_path, missing_ok=True), config)
        for key, value in file.items()
        if key.endswith("_token")
    ]
    tokens = {key: token for key, token in named if isinstance(token, str)}
    text, origin = _find(chosen, tokenizer_path, config)
    template = ChatTemplate(text, origin, tuple(sorted(tokens.items())))
    _check(template, {key for key, _ in named}, map_path)
    return template


def render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = False,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Return a conversation as the template writes it; `values` is what else it may use, such as `tools`.

    Raises:
        TrainkitError: the template refuses the conversation, fails on it, or writes something that is not text.
    """
    plain = _compile(template.text).plain
    text = _run(plain, template, messages, values, add_generation_prompt=add_generation_prompt)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TrainkitError(f"the conversation {NO_TEXT}") from error
    return text


def has_generation_blocks(template: ChatTemplate) -> bool:
    """Return whether the template itself marks what is generated."""
    return _compile(template.text).marked is not None


def render_marked(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], *, values: Mapping[str, Any] | None = None
) -> str:
    """Return the same as `render`, with `BEGIN` and `END` around generation blocks. Raises TrainkitError."""
    marked = _compile(template.text).marked
    assert marked is not None
    return _run(marked, template, messages, values, add_generation_prompt=False)


def _run(
    jinja: Jinja,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any] | None,
    *,
    add_generation_prompt: bool,
) -> str:
    # a column called "range" must not hide Jinja's own; tools and documents are always there in transformers
    others = {key: value for key, value in (values or {}).items() if key not in jinja.globals}
    variables: dict[str, Any] = {"tools": None, "documents": None} | others | dict(template.special_tokens)
    variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
    from trainkit.data.documents.template_sandbox import limits  # it imports jinja

    try:
        with limits():
            return jinja.render(variables)
    # a template is a program, and raises what Python raises for what it does with the messages
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise TrainkitError(
            f"the chat template fails on the conversation: {reason}", hint=f"the template is {template.origin}"
        ) from error


@lru_cache(maxsize=16)
def _compile(text: str) -> _Compiled:
    """Return a template, compiled. Raises jinja2.TemplateSyntaxError."""
    from jinja2 import meta, nodes

    environment = _environment("", "")
    tree = environment.parse(text)
    # its own tag is the environment's only extension that is called when a template runs
    encloses = tree.find(nodes.ExtensionAttribute) is not None
    uses = frozenset(meta.find_undeclared_variables(tree))
    return _Compiled(
        environment.from_string(text),
        _environment(BEGIN, END).from_string(text) if encloses else None,
        uses,
        uses - _guarded_names(tree),
    )


def _guarded_names(tree: Tree) -> set[str]:
    """Return the names that a template tests before it uses them: in a condition, or with a default."""
    from jinja2 import nodes

    tested: list[nodes.Node] = [node.test for node in tree.find_all(nodes.If)]
    tested += [node.test for node in tree.find_all(nodes.CondExpr)]
    tested += [node.node for node in tree.find_all(nodes.Filter) if node.name in ("default", "d") and node.node]
    names = (name for node in tested for name in (node, *node.find_all(nodes.Name)))
    return {name.name for name in names if isinstance(name, nodes.Name)}


@cache
def _environment(begin: str, end: str) -> Environment:
    """Return what templates expect of transformers; it writes `begin` and `end` around generation blocks."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    from trainkit.data.documents.template_sandbox import LimitedSandbox, with_limits

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("enclose"), [], [], body).set_lineno(line)

        def enclose(self, caller: Callable[[], str]) -> str:
            return begin + caller() + end

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = with_limits(tojson)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _NOW.strftime
    return environment


def _find(chosen: ChatTemplateChoice, tokenizer_path: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return (Jinja, where it is from)."""
    if chosen.path is not None:
        path = Path(os.path.expanduser(chosen.path))
        return _read(path, "document.template is Jinja, with {{ or {% in it, or the path of a file"), str(path)
    if chosen.jinja is not None:
        return chosen.jinja, "document.template"
    beside = tokenizer_path.with_name("chat_template.jinja")
    if beside.is_file():
        return _read(beside, ""), str(beside)
    origin = f"{tokenizer_path.with_name('tokenizer_config.json')}:chat_template"
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = by_name.get("default")
        if template is None:
            raise TrainkitError(
                f"there are several chat templates, and none is named 'default': {', '.join(map(str, by_name))}",
                where=origin,
                hint="copy the right one into a file, and set document.template to its path",
            )
    if isinstance(template, str):
        return template, origin
    raise TrainkitError(
        "there is no chat template: document.template is not given, and beside the tokenizer there is neither a"
        " chat_template.jinja nor a 'chat_template' in tokenizer_config.json",
        where=str(tokenizer_path),
        hint=f'write one into a file, and name the file (document.template = "chat.jinja"); such as:\n{EXAMPLE}',
    )


def check_syntax(chosen: ChatTemplateChoice) -> None:
    """Raise TrainkitError if the recipe's own template cannot be read, is not Jinja, or does not use `messages`."""
    if chosen.path is not None or chosen.jinja is not None:
        _checked(ChatTemplate(*_find(chosen, Path(), {})))


def _check(template: ChatTemplate, named: set[str], map_path: Path) -> None:
    compiled = _checked(template)
    # Jinja writes nothing for an unknown name, and a model that sees no end never learns to stop
    for token in _TOKENS:
        if token in compiled.needs and token not in named:
            raise TrainkitError(
                f"the chat template writes {token}, but the tokenizer's files do not define it",
                where=template.origin,
                hint=f'name it in {map_path}: {{"{token}": "…"}} (null if there is none),'
                " or spell it out in your own template",
            )


def _checked(template: ChatTemplate) -> _Compiled:
    """Return a template, compiled. Raises TrainkitError if it is not Jinja or does not use `messages`."""
    from jinja2 import TemplateSyntaxError

    try:
        compiled = _compile(template.text)
    except TemplateSyntaxError as error:
        raise TrainkitError(
            f"the chat template is not valid Jinja: {error.message}", where=f"{template.origin}:{error.lineno}"
        ) from error
    except (RecursionError, MemoryError, SyntaxError) as error:  # Python compiles what Jinja makes of it
        raise TrainkitError("the chat template is nested too deeply", where=template.origin) from error
    if "messages" not in compiled.uses:
        raise TrainkitError(
            "the chat template does not use 'messages', the list of a conversation's messages",
            where=template.origin,
            hint=f"such as:\n{EXAMPLE}",
        )
    return compiled


def _read(path: Path, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrainkitError(f"cannot read the chat template: {reason}", where=str(path), hint=hint) from error
