"""A function of LLVM IR under construction, as text: values, constants, declarations and size arithmetic."""

import struct
from collections.abc import Sequence

import sympy
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.host.expressions import ordered_args
from tilewright.backends.host.helpers import Helper
from tilewright.dialects.sym_expr import Expr, FloorDiv, Max, Min, Mod, Symbol


class FunctionText:
    """The body of one function and what it needs around it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._constants: dict[str, str] = {}
        self._declarations: dict[str, None] = {}
        self._definitions: dict[str, None] = {}
        self._next_value = 0
        self._next_block = 0
        self._block = "entry"
        self._expressions: dict[Expr, str] = {}
        self._scratch_used = 0
        self._scratch_size = 0
        self._variables = 0

    @property
    def block(self) -> str:
        """The label of the block that lines go to."""
        return self._block

    def line(self, text: str) -> None:
        """Append an instruction that has no result."""
        self._lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """Append an instruction and return the name of its result."""
        name = f"%v{self._next_value}"
        self._next_value += 1
        self._lines.append(f"  {name} = {text}")
        return name

    def new_label(self) -> str:
        """Return a label that no block has."""
        label = f"b{self._next_block}"
        self._next_block += 1
        return label

    def start_block(self, label: str) -> None:
        """End the current block, which must have its terminator, and begin the next."""
        self._lines.append(f"{label}:")
        self._block = label

    def declare(self, text: str) -> None:
        """Add a declaration, once."""
        self._declarations[text] = None

    def use(self, helper: Helper) -> None:
        """Add a helper function, once."""
        self._definitions[helper.text] = None
        for declaration in helper.declarations:
            self.declare(declaration)

    def call(self, result: str, function: str, arguments: Sequence[str]) -> str:
        """Call an external function; `arguments` are typed operands, as `i64 %v1`. Returns the result's name."""
        kinds = ", ".join(a.split(" ", 1)[0] for a in arguments)
        self.declare(f"declare {result} @{function}({kinds})")
        return self.value(f"call {result} @{function}({', '.join(arguments)})")

    def constant(self, text: str) -> str:
        """Return a pointer to constant data, e.g. `[2 x i64] [i64 1, i64 2]`."""
        name = self._constants.get(text)
        if name is None:
            name = self._constants[text] = f"@c{len(self._constants)}"
        return name

    def c_string(self, text: str) -> str:
        """Return a pointer to `text` in UTF-8, with a zero at its end."""
        data = text.encode() + b"\0"
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
        return self.constant(f'[{len(data)} x i8] c"{escaped}"')

    def bind(self, symbol: Symbol, value: str) -> None:
        """Let a symbol stand for an i64 value in the expressions that follow."""
        self._expressions[symbol] = value

    def expression(self, expr: Expr) -> str:
        """Compute a size expression; equal ones are computed once. Raises `VerifyException` for an unbound symbol."""
        if expr.is_Integer:
            return str(int(expr))
        known = self._expressions.get(expr)
        if known is None:
            if isinstance(expr, sympy.Symbol):
                raise VerifyException(f"no argument provides the size `{expr.name}`")
            known = self._expressions[expr] = self._compute(expr)
        return known

    def _compute(self, expr: Expr) -> str:
        if isinstance(expr, (FloorDiv, Mod)):
            return self._divide(expr)
        if isinstance(expr, (Min, Max)):
            left, right = (self.expression(a) for a in ordered_args(expr))
            name = "smin" if isinstance(expr, Min) else "smax"
            return self.call("i64", f"llvm.{name}.i64", [f"i64 {left}", f"i64 {right}"])
        if expr.is_Pow:
            base, exponent = self.expression(expr.args[0]), int(expr.args[1])
            operands, instruction = [base] * exponent, "mul"
        else:
            operands, instruction = [self.expression(a) for a in ordered_args(expr)], "add" if expr.is_Add else "mul"
        result = operands[0]
        for operand in operands[1:]:
            result = self.value(f"{instruction} nsw i64 {result}, {operand}")
        return result

    def _divide(self, expr: Expr) -> str:
        """Divide rounding down: LLVM rounds towards zero, one too much where the signs differ and a rest stays."""
        left, right = (self.expression(a) for a in expr.args)
        rest = self.value(f"srem i64 {left}, {right}")
        signs = self.value(f"xor i64 {rest}, {right}")
        differ = self.value(f"icmp slt i64 {signs}, 0")
        inexact = self.value(f"icmp ne i64 {rest}, 0")
        adjust = self.value(f"and i1 {differ}, {inexact}")
        if isinstance(expr, Mod):
            adjusted = self.value(f"add i64 {rest}, {right}")
            return self.value(f"select i1 {adjust}, i64 {adjusted}, i64 {rest}")
        quotient = self.value(f"sdiv i64 {left}, {right}")
        return self.value(f"sub i64 {quotient}, {self.value(f'zext i1 {adjust} to i64')}")

    def array(self, exprs: Sequence[Expr]) -> str:
        """Return a pointer to the i64 values of `exprs`, valid until `release_scratch`; null if there are none."""
        if not exprs:
            return "null"
        if all(e.is_Integer for e in exprs):
            return self.constant(f"[{len(exprs)} x i64] [{', '.join(f'i64 {int(e)}' for e in exprs)}]")
        return self.stored([f"i64 {self.expression(e)}" for e in exprs])

    def stored(self, operands: Sequence[str]) -> str:
        """Store 64-bit operands side by side and return a pointer to the first, valid until `release_scratch`."""
        start = self._scratch_used
        self._scratch_used += max(len(operands), 1)
        self._scratch_size = max(self._scratch_size, self._scratch_used)
        pointers = [
            self.value(f"getelementptr i64, ptr %scratch, i64 {start + i}") for i in range(max(len(operands), 1))
        ]
        for operand, pointer in zip(operands, pointers, strict=False):
            self.line(f"store {operand}, ptr {pointer}")
        return pointers[0]

    def variable(self) -> str:
        """Return a pointer to 64 bits, zero at first, that stay valid in the whole function."""
        name = f"%variable{self._variables}"
        self._variables += 1
        return name

    def release_scratch(self) -> None:
        """Let later arrays take the place of all that were made."""
        self._scratch_used = 0

    def finish(self, signature: str) -> str:
        """Return the module: constants, declarations, definitions, and the function."""
        constants = [f"{name} = private unnamed_addr constant {text}" for text, name in self._constants.items()]
        scratch = f"  %scratch = alloca i64, i64 {self._scratch_size}" if self._scratch_size else None
        variables = [
            line
            for number in range(self._variables)
            for line in (f"  %variable{number} = alloca i64", f"  store i64 0, ptr %variable{number}")
        ]
        body = [f"{signature} {{", "entry:", *([scratch] if scratch else []), *variables, *self._lines, "}"]
        return "\n".join([*constants, *self._declarations, *self._definitions, *body, ""])


def double_bits(value: float) -> int:
    """Return the bits of a double as a number."""
    return struct.unpack("<q", struct.pack("<d", value))[0]
