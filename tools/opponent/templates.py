"""Chat templates that fail, never end, say nothing or say too much."""

import functools
import random
from pathlib import Path

from tools.opponent import published
from tools.opponent.case import Case, NotClear

LONGEST = 10_000_000  # characters of a prompt that no model reads
TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello {{ 1/0 }} \x1b[31m"},
]
TEMPLATES = (
    "{{ 1/0 }}",
    "{{ 1 % 0 }}",
    "{{ range(10**9) | list }}",
    "{% for i in range(10**9) %}{% endfor %}x",
    "{{ 'a' * 10**9 }}",
    "",
    "{{ 'a' * 10**12 }}",
    "{{ 10**10**8 }}",
    "{{ 9**9**9 }}",
    "   ",
    "{{ messages[99].content }}",
    "{{ messages['x'].y }}",
    "{{ none.x.y }}",
    (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor"
        " %}{% endfor %}{% endfor %}x"
    ),
    "{{ nope }}",
    (
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{{ a }}{%"
        " endfor %}{% endfor %}{% endfor %}"
    ),
    "{{ nope.x }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{{ {}['x'] }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ raise_exception('no system') }}",
    "{{ raise_exception(3) }}",
    "{{ raise_exception() }}",
    "{{ raise_exception('\x1b[31m') }}",
    "{% include 'x' %}",
    "{% extends '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% if %}",
    "{% for %}",
    "{{",
    "{% raw %}",
    "{# open",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ (messages | tojson) * 10**7 }}",
    "{{ '%0999999999d' % 3 }}",
    "{{ '{:>999999999}'.format(3) }}",
    "{{ messages | sort }}",
    "{{ 3 | join }}",
    "{{ messages | nope }}",
    "{{ messages is nope }}",
    "{{ strftime_now(3) }}",
    "{{ strftime_now('%' * 9999) }}",
    "{{ [1] | batch(0) | list }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'x' | indent(10**9) }}",
    "{{ ('a' ~ 'b') * 10**10 }}",
    "{{ 'ab' | wordwrap(0) }}",
    (
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{%"
        " endfor %}{{ ns.x }}"
    ),
    "{{ lipsum(n=10**6) }}",
    "{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}",
    "{{ messages[0].update({'role': 3}) }}",
    "{{ 'a'.encode('nope') }}",
    "{{ '\\ud800' }}",
    "{{ messages | map(attribute='x.y.z') | list }}",
    "{{ 'a' | int(10**5000) }}",
    "{{ ('9' * 5000) | int }}",
    "{{ 1 | round(10**9) }}",
    "{{ 2.0 ** 9999 }}",
    "{{ [[]] * 10**9 }}",
    "{% for i in range(10**4) %}{{ 'a' * 10**4 }}{% endfor %}",
    "{{ '" + "a" * 10**6 + "' }}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{% if 1 %}" * 200 + "x" + "{% endif %}" * 200,
    "{{ " + "1+" * 5000 + "1 }}",
    "{{ dict(messages) }}",
    "{{ messages | groupby('role') | list }}",
    "{{ 'a' | slice(0) | list }}",
    "{% generation %}x{% endgeneration %}",
    "{% for m in messages %}{{ m.role | upper }}{{ m['content'] | trim }}{% break %}{% endfor %}",
    "{{ 3(4) }}",
    "{{ messages() }}",
    "{% set x = joiner('a' * 10**8) %}{% for i in range(99) %}{{ x() }}{% endfor %}",
    "{{ 'a' | replace('', 'b' * 10**9) }}",
    "{{ 'a' | filesizeformat }}",
    "{{ '%s' % messages }}",
    "{% call nope() %}{% endcall %}",
    "{{ range(0, 10**5, 0) }}",
    "{{ range('x') }}",
    "{{ messages[:10**99] }}",
    "{{ '' | first }}",
    "{{ [] | max }}",
    "{{ {1: 2, 'a': 3} | dictsort }}",
)


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns a case for each template."""
    base = published.make(folder)
    return [
        Case(kind, template[:200], functools.partial(_run, base, template))
        for template in TEMPLATES
    ]


def _run(base: Path, template: str) -> None:
    from flaxformer_lite.model_details import load_tokenizer
    from flaxformer_lite.pretrained.chat import render

    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = template
    prompt = render(tokenizer, TURNS)
    if len(prompt) > LONGEST:
        raise NotClear(f"a prompt of {len(prompt):,} characters")
    prompt.encode()
    if not tokenizer.encode(prompt, special_tokens=False):
        raise NotClear("an empty prompt")
