"""Pipelines as a user writes them: `loop-fuse,loop-tile{sizes=8,64}`, `@buffers,canonicalize`, `builtin.module(..)`.

`@name` stands for the pipeline of that name. All passes of ours run on a module, so `builtin.module(a,b)` is `a,b` and
any other nesting is refused.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException
from xdsl.utils.hints import type_repr

from tilewright.tools.source import Source

PassFactories = Mapping[str, Callable[[], type[ModulePass]]]

_NAME = "pass pipeline"
_CLOSING = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class _Element:
    """A part of a pipeline between commas, and where it starts in the text."""

    text: str
    position: int


def parse_passes(text: str, passes: PassFactories, pipelines: Mapping[str, str]) -> list[ModulePass]:
    """Return the passes that `text` names.

    Raises `SourceError`, which points into the text, for what is not a pipeline, for a pass or pipeline that does not
    exist, and for an option that the pass lacks or that has a wrong value.
    """
    return list(_parse(Source(_NAME, text), text, 0, passes, pipelines))


def _parse(
    source: Source, text: str, offset: int, passes: PassFactories, pipelines: Mapping[str, str]
) -> Iterator[ModulePass]:
    for element in _split(source, text, offset):
        name, parenthesis, inside = element.text.partition("(")
        if element.text.startswith("@"):
            name = element.text[1:]
            if name not in pipelines:
                raise source.error(f"there is no pipeline `{name}`{_nearest(name, pipelines)}", element.position)
            named = pipelines[name]
            yield from _parse(Source(f"pipeline @{name}", named), named, 0, passes, {})
        elif parenthesis and "{" not in name:
            if name.strip() != "builtin.module" or not inside.endswith(")"):
                raise source.error(
                    f"`{name.strip()}(..)`: passes run on the module, only `builtin.module(..)` can hold them",
                    element.position,
                )
            yield from _parse(source, inside[:-1], element.position + len(name) + 1, passes, pipelines)
        else:
            yield _make_pass(source, element, passes)


def _split(source: Source, text: str, offset: int) -> Iterator[_Element]:
    """Yield the parts of `text` between commas that are in no bracket or string."""
    open_brackets: list[tuple[str, int]] = []
    quoted, start = False, 0
    for i, c in enumerate(text):
        if c == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif c in _CLOSING:
            open_brackets.append((c, offset + i))
        elif c in _CLOSING.values():
            if not open_brackets or _CLOSING[open_brackets.pop()[0]] != c:
                raise source.error(f"`{c}` closes nothing", offset + i)
        elif c == "," and not open_brackets:
            yield _element(source, text, start, i, offset)
            start = i + 1
    if open_brackets:
        raise source.error(f"`{open_brackets[-1][0]}` is never closed", open_brackets[-1][1])
    if text.strip():
        yield _element(source, text, start, len(text), offset)


def _element(source: Source, text: str, start: int, end: int, offset: int) -> _Element:
    part = text[start:end]
    position = offset + start + len(part) - len(part.lstrip())
    if not part.strip():
        raise source.error("expected a pass", position)
    return _Element(part.strip(), position)


def _make_pass(source: Source, element: _Element, passes: PassFactories) -> ModulePass:
    try:
        (spec,) = parse_pipeline(element.text)
    except ArgSpecParseError as error:
        message = str(error).strip().splitlines()[-1].strip()
        raise source.error(message[:1].lower() + message[1:], element.position) from None
    except ValueError as error:
        raise source.error(f"options of a pass that cannot be read: {error}", element.position) from None
    if spec.name not in passes:
        raise source.error(f"there is no pass `{spec.name}`{_nearest(spec.name, passes)}", element.position)
    found = passes[spec.name]()
    try:
        return found.from_spec(spec)
    except (ValueError, TypeError, DiagnosticException) as error:
        raise source.error(_option_error(found, spec, error), element.position) from None


def _option_error(found: type[ModulePass], spec: ArgSpec, error: Exception) -> str:
    known = {f.name for f in fields(found)}
    unknown = [name for name in spec.normalize_parameter_names().parameters if name not in known]
    if unknown:
        offered = ", ".join(f"`{f.name}`" for f in fields(found)) or "none"
        return f"pass `{spec.name}` has no option `{unknown[0]}`; its options: {offered}"
    for option in fields(found):
        value = spec.normalize_parameter_names().parameters.get(option.name)
        if value is not None and not _accepts(found, option.name, value):
            kind = option.type if isinstance(option.type, str) else type_repr(option.type)
            given = ",".join(map(str, value))
            return f"pass `{spec.name}`: option `{option.name}` is `{given}`, expected {kind}"
    return f"pass `{spec.name}`: {error}"


def _accepts(found: type[ModulePass], option: str, value: ParameterListType) -> bool:
    """Whether a pass takes a value for an option whose fellows have their defaults."""
    try:
        found.from_spec(ArgSpec(found.name, {option: value}))
    except (ValueError, TypeError, DiagnosticException) as error:
        return not str(error).startswith(("Incompatible types", "Argument must contain"))
    return True


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f", did you mean `{close[0]}`?" if close else ""


def describe_pass(found: type[ModulePass]) -> str:
    """Return the documentation of a pass: the docstring of its file or class, then its options with their sentences."""
    module = inspect.getmodule(found)
    text = inspect.getdoc(module) if module is not None and module.__name__.startswith("tilewright.") else None
    lines = [found.name, "", text or inspect.getdoc(found) or "(no documentation)", "", "options:"]
    sentences = _option_sentences(found)
    for option in fields(found):
        default = "" if not hasattr(found, option.name) else f" = {getattr(found, option.name)}"
        kind = option.type if isinstance(option.type, str) else type_repr(option.type)
        lines.append(f"  {option.name}: {kind}{default}")
        lines += [f"      {line}" for line in sentences.get(option.name, "").splitlines()]
    return "\n".join(lines if fields(found) else [*lines[:-1], "no options"])


def _option_sentences(found: type[ModulePass]) -> dict[str, str]:
    """Return the string below each field of a class in its source."""
    tree = ast.parse(inspect.cleandoc(inspect.getsource(found)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
