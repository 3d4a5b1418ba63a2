"""Chat templates: what models' templates need, what the sandbox refuses, what the limits stop."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from typing import Any

import pytest
from jinja2 import TemplateError as JinjaError
from transformers.utils.chat_template_utils import render_jinja_template

from pagemill_common.tokenisation import ChatTemplate, ModelTokenizer, TemplateError, TemplateLimits

CHAT = [{"role": "system", "content": "Be <b>brief</b> & 'kind'."}, {"role": "user", "content": "naïve 🙂\n"}]
CHATML = """{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|im_start|>system\\nDefault<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
TEMPLATES = {
    "chatml": CHATML,
    "blocks": "{% for m in messages %}\n    {% if m.role == 'user' %}\n"
    "U: {{ m.content }}\n    {% endif %}\n{% endfor %}\n",
    "namespace": "{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n }}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}"
    "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true) }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 1 %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "macro": "{% macro show(m, end='!') %}{{ m.role ~ ': ' ~ m.content ~ end }}{% endmacro %}"
    "{% for m in messages %}{{ show(m) }}{% endfor %}",
    "none tools": "{% if tools is not none %}tools{% else %}no tools{% endif %}{% if documents %}docs{% endif %}",
    "strings": "{{ messages[1].content.split(' ')[-1].strip() }}{{ ('%s-%d' % ('a', 3)) }}"
    "{{ 'x' * 3 }}{{ ['a','b']|join(', ') }}",
    "slices": "{% for m in messages[1:] %}{{ m.role }}{% endfor %}{{ messages | map(attribute='role') | list }}"
    "{{ messages|selectattr('role','equalto','user')|list|length }}",
    "undefined": "[{{ missing }}]{{ missing is defined }}{{ messages[0].nothing }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "dict": "{% set d = dict(a=1, b=[1, 2]) %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "recursive loop": "{% for m in [[1, [2, 3]], 4] recursive %}"
    "{% if m is iterable %}({{ loop(m) }}){% else %}{{ m }}{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_renders(name: str, prompt: bool) -> None:
    template = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    rendered, _ = render_jinja_template(
        [CHAT], chat_template=TEMPLATES[name], add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )
    assert template.render(CHAT, add_generation_prompt=prompt) == rendered[0]


def test_variables_and_special_tokens() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ mood }}{{ tools[0].name }}{{ eos_token }}", bos_token="<s>", eos_token="</s>"
    )
    assert template.render(CHAT, variables={"mood": "calm", "tools": [{"name": "f"}]}) == "<s>calmf</s>"
    for name in ("messages", "bos_token", "eos_token", "add_generation_prompt"):
        with pytest.raises(TemplateError, match=name):
            template.render(CHAT, variables={name: 1})


def test_the_clock_is_the_one_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", wall_clock=lambda: datetime(2031, 7, 4))
    assert template.render(CHAT) == "04 Jul 2031"


def test_a_refusal_reaches_the_caller() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(CHAT)


@pytest.mark.parametrize("source", ["{% for %}", "{{ unclosed", "{% nonsense %}", "x" * (1 << 21)])
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source)


@pytest.mark.parametrize("expression", ["1 / 0", "messages + 1", "messages[0].content.nothing()", "'a' | nothing_such"])
def test_failures_are_template_errors_in_one_line(expression: str) -> None:
    with pytest.raises(TemplateError) as failure:
        ChatTemplate("{{ " + expression + " }}").render(CHAT)
    assert "\n" not in str(failure.value)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ messages.__class__ }}",
    "{{ messages|attr('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['os'] }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ('%s' | format)['__class__'] }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': messages}) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ (messages | map('attr', '__class__') | list)[0].__name__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__call__ = messages %}{{ ns }}",
    "{% include 'other' %}",
    "{% import 'os' as os %}",
    "{{ ''.encode() }}",
    "{{ 'a'.translate({97: 'b'}) }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_the_sandbox_holds(source: str) -> None:
    # What jinja2 hides shows as an error or, read only, as undefined: nothing but blanks.
    try:
        shown = ChatTemplate(source).render(CHAT)
    except TemplateError:
        return
    assert shown.strip() == ""


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{% set _ = messages[0].update({'role': 'x'}) %}", "{{ messages.clear() }}"]
)
def test_what_a_template_is_given_cannot_be_changed(source: str) -> None:
    chat: list[dict[str, Any]] = [dict(message) for message in CHAT]
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(chat)
    assert chat == CHAT


NEST = "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
DOUBLE = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}"
BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
    "{{ range(10**9) | list }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ 10 ** (10 ** 8) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a\n' | indent(10**9) }}",
    "{{ '1'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ ('a' * 90000) | replace('a', 'b' * 90000) }}",
    "{{ ('a' * 90000).replace('a', 'b' * 90000) }}",
    "{{ ('b' * 90000).join('a' * 90000) }}",
    "{{ ('a' * 90000) | join('b' * 90000) }}",
    DOUBLE + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    DOUBLE + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    DOUBLE + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    NEST + "{{ ns.x }}",
    NEST + "{{ ns.x | tojson }}",
    NEST + "{{ 'a' ~ ns.x }}",
    NEST + "{{ ns.x | string }}",
    NEST + "{{ '%s' % ns.x }}",
    NEST + "{{ '{}'.format(ns.x) }}",
    NEST + "{{ ', '.join([ns.x]) }}",
    NEST + "{{ [ns.x] | join(',') }}",
    "{% set ns = namespace(x=7) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_runaway_templates_end(source: str) -> None:
    # The clock moves with every look at it, so the test's length does not depend on the machine.
    ticks = count()
    limits = TemplateLimits(output_bytes=100_000, seconds=20_000, value_size=100_000)
    with pytest.raises(TemplateError):
        ChatTemplate(source, limits=limits, monotonic=lambda: float(next(ticks))).render(CHAT)


def test_output_within_the_limit_passes_and_beyond_it_does_not() -> None:
    template = ChatTemplate("{{ messages[0].content }}", limits=TemplateLimits(output_bytes=10))
    assert template.render([{"role": "user", "content": "é" * 5}]) == "é" * 5
    with pytest.raises(TemplateError, match="more than 10 bytes"):
        template.render([{"role": "user", "content": "é" * 5 + "a"}])


def test_a_long_chat_is_no_bomb() -> None:
    chat = [{"role": "user" if i % 2 else "system", "content": "word " * 400} for i in range(1000)]
    rendered = ChatTemplate(CHATML).render(chat)
    assert rendered.count("<|im_start|>") == 1001


def test_one_rendering_does_not_pay_for_another() -> None:
    template = ChatTemplate("{{ 'a' * 60 }}", limits=TemplateLimits(value_size=100))
    assert [len(template.render(CHAT)) for _ in range(3)] == [60, 60, 60]


def test_a_model_without_a_template_says_so(byte_tokenizer: ModelTokenizer) -> None:
    assert not byte_tokenizer.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        byte_tokenizer.render_chat(CHAT)


def test_the_oracle_can_fail() -> None:
    with pytest.raises(JinjaError):
        render_jinja_template([CHAT], chat_template="{{ raise_exception('x') }}")
