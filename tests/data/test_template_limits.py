"""Chat templates that never end or write without end are stopped; others are as they were."""

from __future__ import annotations

import pytest

from trainkit.data.documents import template_sandbox
from trainkit.data.documents.chat_template import ChatTemplate, render, resolve_template
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document_spec import ChatTemplateChoice


def endless(body: str) -> ChatTemplate:
    return ChatTemplate("{% set n = messages | length %}{% set x = 'xxxxxxxx' * 8 %}" + body, "test")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "does not end"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}", "does not end"),
        ("{% for a in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}", "recursion"),
        ("{{ n * 9 ** 99999 }}", "bits"),
        ("{% set v = namespace(i=3) %}{% for a in range(40) %}{% set v.i = v.i * v.i %}{% endfor %}", "bits"),
        ("{{ x * 10 ** 10 }}", "characters or entries"),
        ("{{ ([x] * 99999) * 9 }}", "characters or entries"),
        ("{% set v = namespace(s=x) %}{% for a in range(40) %}{% set v.s = v.s ~ v.s %}{% endfor %}", "characters or"),
        ("{% set v = namespace(s=x) %}{% for a in range(40) %}{% set v.s = v.s + v.s %}{% endfor %}", "characters or"),
        ("{% set v = namespace(s=x) %}{% for a in range(9) %}{% set v.s = v.s.replace('x', v.s) %}{% endfor %}", "or"),
        ("{% set v = namespace(s=x) %}{% for a in range(9) %}{% set v.s = v.s|replace('x', v.s) %}{% endfor %}", "or"),
        ("{% set v = namespace(s=x) %}{% for a in range(9) %}{% set v.s = v.s.join(v.s|list) %}{% endfor %}", "or"),
        ("{% set v = namespace(s=x) %}{% for a in range(9) %}{% set v.s = [v.s] * 64 %}{% endfor %}{{ v.s }}", "or"),
        ("{% for a in range(99) %}{% for b in range(99) %}" + "y" * 999 + "{% endfor %}{% endfor %}", "writes more"),
        ("{% for a in range(40) %}{% set x %}{{ x }}{{ x }}{{ x * 999 }}{% endset %}{% endfor %}", "it writes more"),
        ("{{ x.center(10 ** 9) }}", "width"),
        ("{{ x | indent(10 ** 9) }}", "width"),
        ("{{ [x] | tojson(indent=10 ** 9) }}", "width"),
        ("{{ '%1000000000d' % 5 }}{{ '%*d' % (10 ** 9, 5) }}", "width"),
        ("{{ '%*d' % (10 ** 9, 5) }}", "width"),
        ("{{ '{:1000000000}'.format(5) }}", "width"),
        ("{{ '{:{w}}'.format(5, w=10 ** 9) }}", "width"),
        ("{{ '%1000000000d' | format(5) }}", "width"),
        ("{{ range(10 ** 12) }}", "[Rr]ange too big"),
    ],
)
def test_a_template_that_never_ends_or_writes_without_end_is_stopped(monkeypatch, body, why):
    monkeypatch.setattr(template_sandbox, "MOST_TURNS", 10_000)
    monkeypatch.setattr(template_sandbox, "MOST_CHARACTERS", 1_000_000)
    with pytest.raises(TrainkitError, match=why):
        render(endless(body), [{"role": "user", "content": "hello"}])


def test_a_template_whose_turns_are_slow_is_stopped_by_the_clock(monkeypatch):
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", -1.0)
    with pytest.raises(TrainkitError, match="it took more than"):
        render(endless("{% for m in messages %}{% endfor %}"), [{"role": "user", "content": "hello"}])


def test_limits_do_not_refuse_what_templates_do():
    body = """{% macro show(m, id=0) %}{{ m.content | replace(" ", "_") | indent(4) ~ id }}{% endmacro %}
{%- for m in messages %}{{ show(m, id=12345678901) }}{{ "%s: %5d" % (m.role, 1234567) }}{{ 12345678 | tojson }}
{{- ["a", "b"] | join(", ") }}{{ "{:>4}".format("x") }}{{ loop.index + 3 * 7 }}{% endfor %}"""
    text = render(endless(body), [{"role": "user", "content": "hello you"}])
    assert text == "hello_you12345678901user: 123456712345678a, b   x22"


def test_a_template_that_is_nested_too_deeply_is_reported(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    text = "{{ messages }}{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"
    with pytest.raises(TrainkitError, match="nested too deeply"):
        resolve_template(ChatTemplateChoice(jinja=text), tmp_path / "tokenizer.json")
