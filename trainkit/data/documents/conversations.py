"""Conversations as text: written with a chat template, and learned where the assistant speaks.

What is learned goes by the template's own blocks `{% generation %}…{% endgeneration %}`; where it has none, by what
each turn of the assistant adds to the text before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trainkit.data.documents.chat_template import BEGIN, END, ChatTemplate, has_generation_blocks, render, render_marked
from trainkit.data.documents.pieces import Characters, Piece, RowContext, learned_in_part
from trainkit.data.problems import Problem, kind_of, list_names, missing_key
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document import Chat

Message = dict[str, Any]

#: Roles as ShareGPT and its like name them.
_ROLES = {"human": "user", "gpt": "assistant", **{role: role for role in ("user", "assistant", "system", "tool")}}


def make(document: Chat, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return a row's conversation as the template writes it, with the parts of it that are learned.

    Messages are `{"role": …, "content": …}` or ShareGPT's `{"from": …, "value": …}`. The template gets everything that
    a message holds except nulls, and all other keys of the row; `tools` may be JSON in a string. What the template
    writes to end the assistant's turn is learned with it. A message with `"train": false` or `"weight": 0` is not
    learned; the template gets neither. In rows of `context.columns`, nulls are removed from objects at any depth, since
    tables store one for each key that another row's object has.
    """
    assert context.chat is not None, "the chat template is resolved before anything is read"
    template = context.chat
    try:
        messages = read_messages(row, document.key, "document.key", columns=context.columns)
        values = template_values(row, [document.key], columns=context.columns)
        trained = [_takes_part(message, f"{document.key}[{k}]") for k, message in enumerate(messages)]
        turns = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns and document.learn != "all":
            roles = list_names(dict.fromkeys(message["role"] for message in messages))
            raise TrainkitError(
                f"'{document.key}' has no turn of the assistant, and so nothing to learn; roles found: {roles}",
                hint='the assistant\'s turns have the role "assistant"; to learn the whole text: learn = "all"',
            )
        wanted = _turns_to_learn(document, messages, trained, turns)
        messages, text = render_taken(template, messages, values)
        if document.learn == "all":
            learned = [(0, len(text))]
        elif has_generation_blocks(template):
            learned = _generation_parts(template, messages, values, text)
            if wanted != turns:
                ends = {
                    k: _blocks_before(template, messages[:after], values) for k, after in pairwise(turns) if k in wanted
                }
                learned = [
                    block
                    for k in wanted
                    for block in learned[_blocks_before(template, messages[:k], values) : ends.get(k)]
                ]
        else:
            learned = _additions(document, template, messages, values, wanted, text)
        if not any(start < end for start, end in learned):
            raise TrainkitError("the template writes nothing to learn", hint=f"the template is {template.origin}")
    except TrainkitError as error:
        return error.problem, error.hint
    return [learned_in_part(index, text, learned)]


def _takes_part(message: Message, where: str) -> bool | None:
    """Return whether a message asks to be learned, None if it does not say; removes its `train` and `weight`."""
    flags = {key: message.pop(key) for key in ("train", "weight") if key in message}
    for key, value in flags.items():
        if value not in ((False, True) if key == "train" else (0, 1)):
            allowed = "true or false" if key == "train" else "0 or 1"
            raise TrainkitError(f"the {key} of {where} is {value!r}; it may be {allowed}")
    answers = {bool(value) for value in flags.values()}
    if len(answers) > 1:
        raise TrainkitError(f"{where} says both train = {flags['train']} and weight = {flags['weight']}")
    return answers.pop() if answers else None


def _turns_to_learn(
    document: Chat, messages: Sequence[Message], trained: Sequence[bool | None], turns: Sequence[int]
) -> list[int]:
    """Return which of the assistant's turns are learned."""
    for k, (message, train) in enumerate(zip(messages, trained, strict=True)):
        where = f"{document.key}[{k}]"
        if train and message["role"] != "assistant" and document.learn != "all":
            raise TrainkitError(
                f"{where} is marked as learned, but has the role '{message['role']}'",
                hint='only turns of the assistant can be learned; to learn the whole text: learn = "all"',
            )
        if train is False and document.learn == "all":
            raise TrainkitError(
                f'{where} is not to be learned, but document.learn = "all" learns the whole text',
                hint='learn = "assistant" learns the turns that may be',
            )
    wanted = [k for k in (turns[-1:] if document.learn == "last" else turns) if trained[k] is not False]
    if not wanted and turns and document.learn != "all":
        raise TrainkitError(
            f"'{document.key}' has nothing to learn: train = false or weight = 0 on each turn of the assistant"
            + (" that counts, the last one" if document.learn == "last" else "")
        )
    empty = next((k for k in wanted if document.learn != "all" and says_nothing(messages[k])), None)
    if empty is not None:
        raise TrainkitError(
            f"{document.key}[{empty}] is a turn of the assistant that is learned and has no text",
            hint='leave such rows out, or let the turn not be learned: "train": false in the message',
        )
    return wanted


def says_nothing(message: Message) -> bool:
    """Return whether a message has nothing but blanks: no text, and no call of a tool or anything else."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content)
    others = message.keys() - {"role", "content", "name"}
    return not any(message[key] for key in others) and not str(content or "").strip()


def read_messages(row: Mapping[str, Any], key: str, setting: str, *, columns: bool = False) -> list[Message]:
    """Return the messages that a row has under a key, each with a role. `setting` is where the recipe names the key;
    for `columns` see `make`. Raises TrainkitError."""
    if key not in row:
        problem, hint = missing_key(key, row, setting, usual=("messages", "conversations", "conversation", "chat"))
        raise TrainkitError(problem, hint=hint)
    if columns:
        row = _as_stored(row, key)
    found = row[key]
    if not isinstance(found, list | tuple):
        raise TrainkitError(f"'{key}' is {kind_of(found)}, not a list of messages", hint=_LOOKS)
    if not found:
        raise TrainkitError(f"'{key}' is empty", hint=_LOOKS)
    return [_message(message, f"{key}[{k}]") for k, message in enumerate(found)]


_LOOKS = 'conversations look like [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'


def _message(found: Any, where: str) -> Message:
    """Return a message with a role; its content is text or a list of parts, or missing because it calls a tool."""
    if not isinstance(found, Mapping):
        raise TrainkitError(f"{where} is {kind_of(found)}, not an object", hint=_LOOKS)
    message = _without_nulls(found)
    if "role" not in message and isinstance(name := message.pop("from", None), str):
        if name not in _ROLES:
            raise TrainkitError(f"{where} is from '{name}'; known are {', '.join(_ROLES)}", hint=_LOOKS)
        message = {"role": _ROLES[name], "content": message.pop("value", None), **message}
    for key in ("role", "content"):
        value = message.get(key)
        if value is None and key == "content" and "tool_calls" in message:
            if key in found:
                message[key] = None
        elif value is None:
            raise TrainkitError(f"{where} has no {key}; keys found: {list_names(found)}", hint=_LOOKS)
        elif key == "content" and isinstance(value, list | tuple):
            message[key] = [_without_nulls(part) if isinstance(part, Mapping) else part for part in value]
        elif not isinstance(value, str):
            raise TrainkitError(f"the {key} of {where} is {kind_of(value)}, not a string", hint=_LOOKS)
    return message


def _as_stored(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table's row without the nulls that stand for absent keys of objects in it. `_message` handles those of
    the messages themselves."""
    messages = row.get(key)
    given = {name: _without_absent(value) for name, value in row.items()}
    if isinstance(messages, list | tuple) and all(isinstance(message, Mapping) for message in messages):
        given[key] = [{name: _without_absent(value) for name, value in message.items()} for message in messages]
    return given


def _without_absent(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_absent(each) for key, each in value.items() if each is not None}
    return [_without_absent(each) for each in value] if isinstance(value, list | tuple) else value


def _without_nulls(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value is not None}


def template_values(row: Mapping[str, Any], keys: Collection[str], *, columns: bool = False) -> dict[str, Any]:
    """Return what a template may use of a row beside the messages under `keys`. Raises TrainkitError."""
    values = {name: _without_absent(value) if columns else value for name, value in row.items() if name not in keys}
    if isinstance(tools := values.get("tools"), str):
        try:
            values["tools"] = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise TrainkitError(f"'tools' is a string that is not JSON: {error}") from error
    return values


def render_taken(
    template: ChatTemplate, messages: list[Message], values: Mapping[str, Any]
) -> tuple[list[Message], str]:
    """Return the messages and their text; parts that are all text are joined where the template takes no lists.

    Raises TrainkitError."""
    lists = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    try:
        text = render(template, messages, values=values)
        if not any(str(parts) in text for parts in lists):
            return messages, text
        failed = TrainkitError(
            "the chat template takes no content in parts: it writes the list as Python would",
            hint=f"the template is {template.origin}",
        )
    except TrainkitError as error:
        failed = error
    if not lists or not all(isinstance(part, dict) and part.get("type") == "text" for each in lists for part in each):
        raise failed
    joined = [
        {**message, "content": "".join(str(part.get("text", "")) for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
    return joined, render(template, joined, values=values)


def _generation_parts(
    template: ChatTemplate, messages: list[Message], values: Mapping[str, Any], text: str
) -> list[Characters]:
    """Return the parts that the template's outermost generation blocks enclose, even if they are empty."""
    spans: list[Characters] = []
    marked = render_marked(template, messages, values=values)
    position = begin = depth = 0
    for part in re.split(f"([{BEGIN}{END}])", marked):
        if part == BEGIN:
            begin = begin if depth else position
            depth += 1
        elif part == END:
            depth -= 1
            if depth == 0:
                spans.append((begin, position))
        else:
            position += len(part)
    if depth or marked.replace(BEGIN, "").replace(END, "") != text:
        raise TrainkitError(
            "the chat template changes its text after a {% generation %} block (such as by a trim), so where the block"
            " is in the text is unknown",
            hint=f"change it inside the block; the template is {template.origin}",
        )
    return spans


def _blocks_before(template: ChatTemplate, messages: list[Message], values: Mapping[str, Any]) -> int:
    """Return how many generation blocks the text of these messages has: the same whatever follows, though their text
    may differ."""
    if not messages:
        return 0
    return len(_generation_parts(template, messages, values, render(template, messages, values=values)))


def _additions(
    document: Chat,
    template: ChatTemplate,
    messages: list[Message],
    values: Mapping[str, Any],
    turns: Sequence[int],
    text: str,
) -> list[Characters]:
    """Return what each of these turns adds to the text before it, which includes the words that ask for an answer."""

    def write(count: int, *, prompt: bool) -> str:
        return render(template, messages[:count], add_generation_prompt=prompt, values=values)

    spans: list[Characters] = []
    for k in turns:
        before = write(k, prompt=True)
        upto = text if k + 1 == len(messages) else write(k + 1, prompt=False)
        if not upto.startswith(before):
            raise _unclear(document, f"{document.key}[{k}] does not continue the text that asks for it")
        if not text.startswith(upto):
            raise _unclear(document, f"the text up to {document.key}[{k}] is another one when more turns follow")
        spans.append((len(before), len(upto)))
    return spans


def _unclear(document: Chat, found: str) -> TrainkitError:
    ways = ['learn = "all"']
    if document.learn == "assistant":
        ways.insert(0, 'learn = "last" (the last turn only)')
    return TrainkitError(
        f"cannot find what is learned, as the chat template has no {{% generation %}} blocks, and {found}",
        hint="use a template with {% generation %} … {% endgeneration %} around what the assistant says,"
        f" or {' or '.join(ways)}",
    )
