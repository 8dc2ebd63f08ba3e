"""LLVM IR of random numbers: Philox4x32-10 (`dialects/philox.py`) on lanes of 64 bits that each hold one word.

A product of two words has 64 bits, so a vector of such lanes gets both halves from one multiplication
(x86: vpmuludq). What is above the low word of a lane is ignored by the next one, so that words need no masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerType, VectorType
from xdsl.ir import Attribute, Operation

from tilewright.backends.llvm.builder import FunctionText
from tilewright.backends.llvm.types import float_text, lanes_of, llvm_type, vector_text
from tilewright.dialects import cpu_random
from tilewright.dialects.loop_random import RandomOp, RandomOperation
from tilewright.dialects.loop_scalar import like
from tilewright.dialects.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD, uniform_digits

_I64 = IntegerType(64)


@dataclass(frozen=True)
class _Generator:
    """Emits evaluations of the generator for one seed and stream, by their names in the function."""

    fn: FunctionText
    seed: str
    stream: str

    def words(self, kind: Attribute, number: str) -> list[str]:
        """Return the four words of the blocks whose numbers are the lanes of `number`, of type `kind`."""
        c0, c1 = number, self.shift(kind, number)
        c2, c3 = self.fn.splat(kind, self.stream), self.fn.splat(kind, self.shift(_I64, self.stream))
        k0, k1 = self.fn.splat(kind, self.seed), self.fn.splat(kind, self.shift(_I64, self.seed))
        for number_of_round in range(ROUNDS):
            low, high = self.product(kind, c0, MULTIPLIERS[0]), self.product(kind, c2, MULTIPLIERS[1])
            c0 = self.mix(kind, self.shift(kind, high), c1, k0)
            c2 = self.mix(kind, self.shift(kind, low), c3, k1)
            c1, c3 = high, low
            if number_of_round + 1 < ROUNDS:
                k0, k1 = (self.operate("add", kind, k, str(s)) for k, s in zip((k0, k1), KEY_STEPS, strict=True))
        return [c0, c1, c2, c3]

    def operate(self, instruction: str, kind: Attribute, lhs: str, constant: str) -> str:
        return self.fn.op(f"{instruction} {llvm_type(kind)} {lhs}, {self.fn.splat(kind, constant)}")

    def shift(self, kind: Attribute, value: str) -> str:
        return self.operate("lshr", kind, value, "32")

    def product(self, kind: Attribute, word: str, factor: int) -> str:
        return self.operate("mul", kind, self.operate("and", kind, word, str(WORD)), str(factor))

    def mix(self, kind: Attribute, a: str, b: str, c: str) -> str:
        text = llvm_type(kind)
        return self.fn.op(f"xor {text} {self.fn.op(f'xor {text} {a}, {b}')}, {c}")

    def pair(self, kind: Attribute, low: str, high: str) -> str:
        """Return 64 bits made of two words."""
        text = llvm_type(kind)
        upper = self.operate("shl", kind, high, "32")
        return self.fn.op(f"or {text} {upper}, {self.operate('and', kind, low, str(WORD))}")

    def run(self, first: str, blocks: int) -> str:
        """Return the words of `blocks` blocks from number `first` on, as a vector of 64-bit pairs in order."""
        kind = VectorType(_I64, [blocks])
        text = llvm_type(kind)
        if blocks == 1:
            number = first
        else:
            steps = ", ".join(f"i64 {n}" for n in range(blocks))
            number = self.fn.op(f"add {text} {self.fn.splat(kind, first)}, <{steps}>")
        words = self.words(kind if blocks > 1 else _I64, number)
        kind = kind if blocks > 1 else _I64
        low, high = self.pair(kind, *words[:2]), self.pair(kind, *words[2:])
        if blocks == 1:
            half = self.fn.op(f"insertelement <2 x i64> poison, i64 {low}, i64 0")
            return self.fn.op(f"insertelement <2 x i64> {half}, i64 {high}, i64 1")
        order = ", ".join(f"i32 {n}, i32 {blocks + n}" for n in range(blocks))
        return self.fn.op(f"shufflevector {text} {low}, {text} {high}, <{2 * blocks} x i32> <{order}>")


def emit_random(fn: FunctionText, op: Operation) -> str:
    """Emit one evaluation of the generator for each lane, of whose words one, or a pair, is taken."""
    assert isinstance(op, RandomOp)
    generator = _Generator(fn, fn.name(op.seed), fn.name(op.stream))
    kind = like(op.result.type, _I64)
    text, element = llvm_type(kind), fn.name(op.element)
    choices = 2 if op.is_wide else 4
    words = generator.words(kind, generator.operate("lshr", kind, element, str(choices.bit_length() - 1)))
    place = generator.operate("and", kind, element, str(choices - 1))
    if op.is_wide:
        words = [generator.pair(kind, *words[:2]), generator.pair(kind, *words[2:])]
    bits = words[-1]
    for position in reversed(range(choices - 1)):
        here = fn.op(f"icmp eq {text} {place}, {fn.splat(kind, str(position))}")
        bits = fn.op(f"select {llvm_type(like(kind, IntegerType(1)))} {here}, {text} {words[position]}, {text} {bits}")
    if not op.is_wide:
        bits = fn.op(f"trunc {text} {bits} to {llvm_type(like(kind, IntegerType(32)))}")
    return _distribute(fn, op, bits)


def emit_random_run(fn: FunctionText, op: Operation) -> str:
    """Emit evaluations of the generator for consecutive lanes, all of whose words are used.

    Where the first lane is not the first element of a block, a function shifts the words by way of memory.
    """
    assert isinstance(op, cpu_random.RandomOp)
    lanes, choices = lanes_of(op.result.type), 2 if op.is_wide else 4
    vector = vector_text(f"i{128 // choices}", lanes)
    arguments = [fn.name(v) for v in (op.seed, op.stream, op.element)]
    number = fn.op(f"lshr i64 {arguments[2]}, {choices.bit_length() - 1}")
    place = fn.op(f"and i64 {arguments[2]}, {choices - 1}")
    straight, shifted, after = fn.fresh("straight"), fn.fresh("shifted"), fn.fresh("end")
    fits = fn.op(f"icmp eq i64 {place}, 0")
    fn.line(f"br i1 {fits}, label %{straight}, label %{shifted}")
    fn.label(straight)
    words = _Generator(fn, *arguments[:2]).run(number, lanes // choices)
    in_order = fn.op(f"bitcast <{2 * lanes // choices} x i64> {words} to {vector}")
    fn.line(f"br label %{after}")
    fn.label(shifted)
    name = _declare_shifted(fn, lanes, choices)
    values = ", ".join(f"i64 {v}" for v in (*arguments[:2], number, place))
    moved = fn.op(f"call {vector} @{name}({values})")
    fn.line(f"br label %{after}")
    fn.label(after)
    return _distribute(fn, op, fn.op(f"phi {vector} [ {in_order}, %{straight} ], [ {moved}, %{shifted} ]"))


def _declare_shifted(fn: FunctionText, lanes: int, choices: int) -> str:
    """Add the function that takes `lanes` numbers from the middle of a block on; return its name."""
    word = f"i{128 // choices}"
    blocks, vector = lanes // choices, vector_text(word, lanes)
    name = f"random.{word}.{lanes}"
    body = FunctionText(fn.module)
    generator = _Generator(body, "%seed", "%stream")
    pairs = f"<{2 * blocks} x i64>"
    buffer = body.op(f"alloca [{2 * lanes} x {word}], align 64")
    for half in range(2):
        number = body.op(f"add i64 %number, {half * blocks}")
        target = body.op(f"getelementptr inbounds {word}, ptr {buffer}, i64 {half * lanes}")
        body.line(f"store {pairs} {generator.run(number, blocks)}, ptr {target}, align 16")
    start = body.op(f"getelementptr inbounds {word}, ptr {buffer}, i64 %place")
    result = body.op(f"load {vector}, ptr {start}, align 4")
    head = f"define internal {vector} @{name}(i64 %seed, i64 %stream, i64 %number, i64 %place) #0 {{"
    fn.module.declare("\n".join([head, "entry:", *body.lines, f"  ret {vector} {result}", "}"]))
    return name


def _distribute(fn: FunctionText, op: RandomOperation, bits: str) -> str:
    """Turn random bits into numbers of the operation's distribution."""
    kind = op.result.type
    if op.distribution.data == "bits":
        return bits
    width, digits = uniform_digits(wide=op.is_wide)
    integer = like(kind, IntegerType(width))
    text = llvm_type(integer)
    high = fn.op(f"lshr {text} {bits}, {fn.splat(integer, str(width - digits))}")
    number = fn.op(f"sitofp {text} {high} to {llvm_type(kind)}")
    scale = float_text(2.0**-digits, kind)
    return fn.op(f"fmul {llvm_type(kind)} {number}, {fn.splat(kind, scale)}")
