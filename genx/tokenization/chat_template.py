"""Chat templates: Jinja sources from a checkpoint, run in a sandbox and within bounds.

A template is foreign code. It sees the messages and the names of a few tokens, cannot reach Python's internals or
change what it is given, and can load nothing. Bounded are the number of its loop passes and calls, the time they
take together, the work of one call, the texts and lists it builds and the text it renders. Not bounded: the size of
values nested in values (a list of lists of lists ...), and the time of compiling a template, whose file is bounded.
"""

import functools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from genx.errors import TokenizerError
from genx.messages import printable

_MAX_SIZE = 16 << 20  # characters of the rendering, and of a text that a template builds; items of a list
_MAX_WORK = 1 << 28  # characters that one call may make before its result is looked at
_MAX_STEPS = 250_000  # loop passes, calls, filters and operations in one rendering
_MAX_SECONDS = 20.0  # published templates take milliseconds
_MAX_INTEGER_BITS = 256


class ChatTemplate:
    """One chat template, compiled."""

    def __init__(self, source: str) -> None:
        """Compile a template.

        Raises:
            TokenizerError: the source is not a valid template.
        """
        self._environment = _BoundedEnvironment()
        try:
            syntax = _BoundMaker().visit(self._environment.parse(source))
            self._template = self._environment.from_string(syntax)
        except Exception as error:  # foreign code fails in any way it likes
            raise TokenizerError(f"the chat template is not valid: {_reason(error)}") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """Render the template with `messages`, a list of dicts, and whatever else it may ask for.

        Raises:
            TokenizerError: the template refuses the messages, fails, or goes beyond its bounds.
        """
        self._environment.start_budget()
        try:
            return _join(self._template.generate(variables))
        except Exception as error:  # foreign code fails in any way it likes
            raise TokenizerError(f"the chat template failed: {_reason(error)}") from error


def _join(pieces: Iterable[object]) -> str:
    texts: list[str] = []
    size = 0
    for piece in pieces:
        texts.append(str(piece))
        size += len(texts[-1])
        if size > _MAX_SIZE:
            raise TemplateError(f"it makes a text of more than {_MAX_SIZE:,} characters")
    return "".join(texts)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The settings and helpers that published templates expect, with a budget of steps and sizes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_join)  # joins what blocks and macros render

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.start_budget()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(function) for name, function in self.filters.items()}
        self.filters[_LOOP] = lambda iterable: _Passes(iterable, self.spend)
        self.filters[_CONCATENATE] = _join
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def start_budget(self) -> None:
        """Begin to count steps and time anew."""
        self._steps_left = _MAX_STEPS
        self._deadline = time.monotonic() + _MAX_SECONDS

    def spend(self) -> None:
        """Count one step."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateError(f"it takes more than {_MAX_STEPS:,} steps")
        if time.monotonic() > self._deadline:
            raise TemplateError(f"it takes more than {_MAX_SECONDS:.0f} seconds")

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        self.spend()
        if not isinstance(function, Macro):  # whose body is bounded step by step
            itself = getattr(function, "__self__", None)
            _check_work(getattr(function, "__name__", ""), [itself, *arguments, *named.values()])
        return _checked(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend()
        _check_operands(operator, left, right)
        return _checked(super().call_binop(context, operator, left, right))

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the marks by which Jinja knows what else to hand over
        def bounded(*arguments: Any, **named: Any) -> Any:
            self.spend()
            _check_work(getattr(function, "__name__", ""), [*arguments, *named.values()])
            return _checked(function(*arguments, **named))

        return bounded


class _Passes(list[Any]):
    """What a loop goes through; each pass is a step."""

    def __init__(self, iterable: Iterable[Any], spend: Callable[[], None]) -> None:
        super().__init__(iterable)
        self._spend = spend

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self._spend()
            yield item


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - the name and the kind are Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundMaker(NodeTransformer):
    """Sends what loops go through, and what `~` joins, through the environment's bounds."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = _filtered(node.iter, _LOOP)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCATENATE)


# Filters that only the class above can name: no name in a template holds such a sign.
_LOOP = "genx:loop"
_CONCATENATE = "genx:concatenate"


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_work(name: str, values: Iterable[object]) -> None:
    """Refuse a call that multiplies: a text by a number, such as a width, or by what takes the place of its parts."""
    values = list(values)
    texts = [value for value in values if isinstance(value, str)]
    length = sum(len(value) for value in values if isinstance(value, str | list | tuple))
    work = length * math.prod(max(abs(value), 1) for value in values if isinstance(value, int))
    if name in ("replace", "do_replace") and len(texts) >= 3:
        work = texts[0].count(texts[1]) * len(texts[2])
    if work > _MAX_WORK:
        raise TemplateError("it hands too much to one function")


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > _MAX_SIZE:
        raise TemplateError(f"it makes a text or list of more than {_MAX_SIZE:,}")
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise TemplateError(f"it makes a number of more than {_MAX_INTEGER_BITS} bits")
    return value


def _check_operands(operator: str, left: object, right: object) -> None:
    """Refuse an operation that would not even end with a result to check."""
    too_large = False
    match operator:
        case "**":
            too_large = isinstance(right, int) and abs(right) > _MAX_INTEGER_BITS
        case "*":
            sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
            times = [side for side in (left, right) if isinstance(side, int)]
            too_large = bool(sizes) and math.prod([*sizes, *times]) > _MAX_SIZE
        case "%" if isinstance(left, str):
            widths = sum(int(digits) for digits in re.findall(r"\d{1,9}", left))
            too_large = widths > _MAX_SIZE or "*" in left
    if too_large:
        raise TemplateError(f"the result of {operator} would be too large")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes signs for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _reason(error: Exception) -> str:
    return printable(error) or type(error).__name__
