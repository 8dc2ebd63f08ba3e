"""LLVM IR of random numbers: Philox4x32-10 (`dialects/philox.py`) on lanes of 64 bits that each hold one word.

A product of two words has 64 bits, so a vector of such lanes gets both halves from one multiplication
(x86: vpmuludq). What is above the low word of a lane is ignored by the next one, so that words need no masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi

from xdsl.dialects.builtin import IntegerType, VectorType, f32
from xdsl.ir import Attribute, Operation

from tilewright.backends.llvm.builder import FunctionText
from tilewright.backends.llvm.types import bit_width, element_of, float_text, lanes_of, llvm_type, suffix, vector_text
from tilewright.dialects import cpu_random
from tilewright.dialects.loop_random import RandomOp
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

    def run(self, first: str, blocks: int) -> tuple[Attribute, list[str]]:
        """Return the words of `blocks` blocks from number `first` on, and their type."""
        if blocks == 1:
            return _I64, self.words(_I64, first)
        kind = VectorType(_I64, [blocks])
        steps = ", ".join(f"i64 {n}" for n in range(blocks))
        number = self.fn.op(f"add {llvm_type(kind)} {self.fn.splat(kind, first)}, <{steps}>")
        return kind, self.words(kind, number)

    def in_order(self, first: str, blocks: int, vector: str) -> str:
        """Return the words of `blocks` blocks from number `first` on, in order, as a vector of type `vector`."""
        kind, words = self.run(first, blocks)
        text = llvm_type(kind)
        low, high = self.pair(kind, *words[:2]), self.pair(kind, *words[2:])
        if blocks == 1:
            half = self.fn.op(f"insertelement <2 x i64> poison, i64 {low}, i64 0")
            pairs = self.fn.op(f"insertelement <2 x i64> {half}, i64 {high}, i64 1")
        else:
            order = ", ".join(f"i32 {n}, i32 {blocks + n}" for n in range(blocks))
            pairs = self.fn.op(f"shufflevector {text} {low}, {text} {high}, <{2 * blocks} x i32> <{order}>")
        return self.fn.op(f"bitcast <{2 * blocks} x i64> {pairs} to {vector}")

    def numbers(self, distribution: str, kind: Attribute, first: str) -> str:
        """Return as many numbers as `kind` has lanes, all those of the blocks from number `first` on."""
        lanes = lanes_of(kind)
        if distribution == "normal":
            blocks = lanes // 4
            _, words = self.run(first, blocks)
            words = [self.fn.op(f"trunc <{blocks} x i64> {w} to <{blocks} x i32>") for w in words]
            half = VectorType(IntegerType(32), [2 * blocks])
            radius, angle = (self.join(blocks, words[i], words[i + 2]) for i in range(2))
            points = self.points(half, radius, angle)
            order = ", ".join(
                f"i32 {pair * blocks + n}, i32 {(2 + pair) * blocks + n}" for n in range(blocks) for pair in range(2)
            )
            text = f"<{2 * blocks} x float>"
            return self.fn.op(f"shufflevector {text} {points[0]}, {text} {points[1]}, <{lanes} x i32> <{order}>")
        bits = bit_width(kind)
        vector = vector_text(f"i{bits}", lanes)
        return self.distribute(distribution, kind, self.in_order(first, lanes * bits // 128, vector))

    def join(self, lanes: int, first: str, second: str) -> str:
        """Return the lanes of two vectors of 32-bit words, one after the other."""
        kind, order = f"<{lanes} x i32>", ", ".join(f"i32 {n}" for n in range(2 * lanes))
        return self.fn.op(f"shufflevector {kind} {first}, {kind} {second}, <{2 * lanes} x i32> <{order}>")

    def points(self, integer: Attribute, radius: str, angle: str) -> tuple[str, str]:
        """Return the coordinates of points in the plane that are normally distributed, from words of type `integer`."""
        fn, kind = self.fn, like(integer, f32)
        number = fn.op(f"uitofp {llvm_type(integer)} {radius} to {llvm_type(kind)}")
        share = self.scale(kind, self.float_op("fadd", kind, number, 0.5), 2.0**-32)
        length = fn.intrinsic("sqrt", kind, self.scale(kind, fn.math("log", kind, share), -2.0))
        turn = self.scale(kind, self.distribute("uniform", kind, angle), 2.0 * pi)
        text = llvm_type(kind)
        return (
            fn.op(f"fmul {text} {length}, {fn.math('cos', kind, turn)}"),
            fn.op(f"fmul {text} {length}, {fn.math('sin', kind, turn)}"),
        )

    def distribute(self, distribution: str, kind: Attribute, bits: str) -> str:
        """Turn random bits into numbers of type `kind`."""
        if distribution == "bits":
            return bits
        width, digits = uniform_digits(wide=bit_width(kind) == 64)
        integer = like(kind, IntegerType(width))
        high = self.operate("lshr", integer, bits, str(width - digits))
        number = self.fn.op(f"sitofp {llvm_type(integer)} {high} to {llvm_type(kind)}")
        return self.scale(kind, number, 2.0**-digits)

    def scale(self, kind: Attribute, value: str, factor: float) -> str:
        return self.float_op("fmul", kind, value, factor)

    def float_op(self, instruction: str, kind: Attribute, value: str, constant: float) -> str:
        return self.fn.op(f"{instruction} {llvm_type(kind)} {value}, {self.fn.splat(kind, float_text(constant, kind))}")

    def choose(self, kind: Attribute, number: str, bit: int, values: Sequence[str], result: Attribute) -> str:
        """Return the second of two values of type `result` where a bit of `number`, of type `kind`, is set."""
        set_bit = self.operate("and", kind, number, str(1 << bit))
        test = self.fn.op(f"icmp ne {llvm_type(kind)} {set_bit}, {self.fn.splat(kind, '0')}")
        text, condition = llvm_type(result), llvm_type(like(kind, IntegerType(1)))
        return self.fn.op(f"select {condition} {test}, {text} {values[1]}, {text} {values[0]}")


def emit_random(fn: FunctionText, op: Operation) -> str:
    """Emit one evaluation of the generator for each lane, of whose words one, or two, are taken."""
    assert isinstance(op, RandomOp)
    generator = _Generator(fn, fn.name(op.seed), fn.name(op.stream))
    kind, result = like(op.result.type, _I64), op.result.type
    element, distribution = fn.name(op.element), op.distribution.data
    number = generator.operate("lshr", kind, element, "1" if op.is_wide else "2")
    words = generator.words(kind, number)
    if op.is_wide:
        pairs = [generator.pair(kind, *words[:2]), generator.pair(kind, *words[2:])]
        return generator.distribute(distribution, result, generator.choose(kind, element, 0, pairs, kind))
    integer = like(kind, IntegerType(32))
    words = [fn.op(f"trunc {llvm_type(kind)} {w} to {llvm_type(integer)}") for w in words]
    first, second = (generator.choose(kind, element, 1, words[i::2], integer) for i in range(2))
    if distribution == "normal":
        return generator.choose(kind, element, 0, generator.points(integer, first, second), result)
    return generator.distribute(distribution, result, generator.choose(kind, element, 0, (first, second), integer))


def emit_random_run(fn: FunctionText, op: Operation) -> str:
    """Emit evaluations of the generator for consecutive lanes, all of whose words are used.

    Where the first lane is not the first element of a block, a function shifts the numbers by way of memory.
    """
    assert isinstance(op, cpu_random.RandomOp)
    seed, stream, element = (fn.name(v) for v in (op.seed, op.stream, op.element))
    kind, text = op.result.type, llvm_type(op.result.type)
    per_block = 2 if op.is_wide else 4
    number = fn.op(f"lshr i64 {element}, {per_block.bit_length() - 1}")
    place = fn.op(f"and i64 {element}, {per_block - 1}")
    straight, shifted, after = fn.fresh("straight"), fn.fresh("shifted"), fn.fresh("end")
    fits = fn.op(f"icmp eq i64 {place}, 0")
    fn.line(f"br i1 {fits}, label %{straight}, label %{shifted}")
    fn.label(straight)
    in_order = _Generator(fn, seed, stream).numbers(op.distribution.data, kind, number)
    fn.line(f"br label %{after}")
    fn.label(shifted)
    name = _declare_shifted(fn, op.distribution.data, kind, per_block)
    moved = fn.op(f"call {text} @{name}(i64 {seed}, i64 {stream}, i64 {number}, i64 {place})")
    fn.line(f"br label %{after}")
    fn.label(after)
    return fn.op(f"phi {text} [ {in_order}, %{straight} ], [ {moved}, %{shifted} ]")


def _declare_shifted(fn: FunctionText, distribution: str, kind: Attribute, per_block: int) -> str:
    """Add the function that takes numbers from the middle of a block on; return its name."""
    lanes, text, element = lanes_of(kind), llvm_type(kind), llvm_type(element_of(kind))
    name = f"random.{distribution}.{suffix(kind)}"
    body = FunctionText(fn.module)
    generator = _Generator(body, "%seed", "%stream")
    buffer = body.op(f"alloca [{2 * lanes} x {element}], align 64")
    for half in range(2):
        number = body.op(f"add i64 %number, {half * lanes // per_block}")
        target = body.op(f"getelementptr inbounds {element}, ptr {buffer}, i64 {half * lanes}")
        body.line(f"store {text} {generator.numbers(distribution, kind, number)}, ptr {target}, align 16")
    start = body.op(f"getelementptr inbounds {element}, ptr {buffer}, i64 %place")
    result = body.op(f"load {text}, ptr {start}, align 4")
    head = f"define internal {text} @{name}(i64 %seed, i64 %stream, i64 %number, i64 %place) #0 {{"
    fn.module.declare("\n".join([head, "entry:", *body.lines, f"  ret {text} {result}", "}"]))
    return name
