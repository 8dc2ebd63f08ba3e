"""A writer of LLVM IR text: one module, its functions, and the names in them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.ir import Attribute, SSAValue

from tilewright.backends.llvm.mathlib import math_function
from tilewright.backends.llvm.target import Target
from tilewright.backends.llvm.types import EmitError, element_of, is_float, lanes_of, llvm_type, suffix, vector_text


@dataclass
class ModuleText:
    """The parts of a module while it is written. Declarations are kept in the order in which they were first needed."""

    target: Target
    declarations: dict[str, None] = field(default_factory=dict[str, None])
    functions: list[str] = field(default_factory=list[str])
    metadata: list[str] = field(default_factory=list[str])

    def declare(self, text: str) -> None:
        """Add a declaration or a definition that the module needs once."""
        self.declarations[text] = None

    def add_metadata(self, text: str) -> str:
        """Add a metadata node and return its name; `%` in `text` stands for that name."""
        name = f"!{len(self.metadata)}"
        self.metadata.append(f"{name} = {text.replace('%', name)}")
        return name

    def render(self) -> str:
        """Return the whole module."""
        head = f'target triple = "{self.target.triple}"'
        attributes = f"attributes #0 = {{ {self._attributes()} }}"
        return (
            "\n\n".join([head, "\n".join(self.declarations), *self.functions, attributes, "\n".join(self.metadata)])
            + "\n"
        )

    def _attributes(self) -> str:
        parts = ["nounwind", f'"target-cpu"="{self.target.cpu}"', f'"target-features"="{self.target.features}"']
        if self.target.is_x86:
            bits = self.target.vector_bits
            # Without these LLVM splits 512-bit vectors on processors where it thinks them slow.
            parts += [f'"prefer-vector-width"="{bits}"', f'"min-legal-vector-width"="{bits}"']
        return " ".join(parts)


class FunctionText:
    """The body of one function while it is written."""

    def __init__(self, module: ModuleText):
        self.module = module
        self.lines: list[str] = []
        self.block = "entry"
        self.names: dict[SSAValue, str] = {}
        self._next = 0

    @property
    def target(self) -> Target:
        return self.module.target

    def fresh(self, prefix: str = "v") -> str:
        """Return a number that no name in this function has yet."""
        self._next += 1
        return f"{prefix}{self._next}"

    def name(self, value: SSAValue) -> str:
        """Return the text of a value that has been defined."""
        return self.names[value]

    def typed(self, value: SSAValue) -> str:
        """Return type and text of a value."""
        return f"{llvm_type(value.type)} {self.names[value]}"

    def line(self, text: str) -> None:
        """Write an instruction that has no result."""
        self.lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """Write an instruction and return the name of its result."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, block: str) -> None:
        """Begin a block."""
        self.lines.append(f"{block}:")
        self.block = block

    def call(self, function: str, result: str, arguments: Sequence[tuple[str, str]], attributes: str = "") -> str:
        """Call an intrinsic or function, declaring it, on (type, value) pairs."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self.module.declare(f"declare {result} @{function}({kinds}){attributes}")
        return self.op(f"call {result} @{function}({', '.join(f'{k} {v}' for k, v in arguments)})")

    def intrinsic(self, name: str, kind: Attribute, *values: str) -> str:
        """Call `llvm.<name>` overloaded on `kind`, all of whose operands and result have that type."""
        text = llvm_type(kind)
        return self.call(f"llvm.{name}.{suffix(kind)}", text, [(text, v) for v in values])

    def math(self, name: str, kind: Attribute, *values: str) -> str:
        """Call an elementary function of the math library on values of type `kind`."""
        lanes = lanes_of(kind)
        element = suffix(element_of(kind))
        if element == "f16":
            wide = vector_text("float", lanes)
            narrow = llvm_type(kind)
            result = self._math(name, "f32", lanes, [self.op(f"fpext {narrow} {v} to {wide}") for v in values])
            return self.op(f"fptrunc {wide} {result} to {narrow}")
        if element not in ("f32", "f64"):
            raise EmitError(f"`{name}` is a function of floats, found {kind}")
        return self._math(name, element, lanes, values)

    def _math(self, name: str, element: str, lanes: int, values: Sequence[str]) -> str:
        function = math_function(name, "f32" if element == "f32" else "f64", lanes, self.target)
        for text in function.definitions:
            self.module.declare(text)
        kind = vector_text("float" if element == "f32" else "double", lanes)
        return self.op(f"call {kind} @{function.symbol}({', '.join(f'{kind} {v}' for v in values)})")

    def splat(self, kind: Attribute, value: str) -> str:
        """Return a vector with `value` in every lane; for a scalar type the value itself."""
        lanes = lanes_of(kind)
        if lanes == 1 and kind is element_of(kind):
            return value
        element, vector = llvm_type(element_of(kind)), llvm_type(kind)
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        first = self.op(f"insertelement {vector} poison, {element} {value}, i64 0")
        return self.op(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    @contextmanager
    def scope(self) -> Generator[None]:
        """Give the names defined within back at the end."""
        outer = self.names
        self.names = outer.copy()
        yield
        self.names = outer


def compare(predicate: str, kind: Attribute, unsigned: bool = False) -> str:
    """Return the LLVM comparison for a predicate of `loop.cmp`: with a NaN only `ne` holds."""
    if is_float(kind):
        return f"fcmp {'une' if predicate == 'ne' else f'o{predicate}'}"
    if predicate in ("eq", "ne"):
        return f"icmp {predicate}"
    return f"icmp {'u' if unsigned or suffix(element_of(kind)) == 'i1' else 's'}{predicate}"
