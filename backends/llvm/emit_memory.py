"""LLVM IR of memory accesses: `cpu.load`, `cpu.store`, `cpu.gather`, `cpu.scatter`."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, SSAValue

from tilewright.backends.llvm.builder import FunctionText
from tilewright.backends.llvm.types import (
    EmitError,
    element_of,
    is_bf16,
    is_float,
    lanes_of,
    llvm_type,
    memory_element,
    suffix,
    vector_text,
)
from tilewright.dialects.cpu import GatherOp, LoadOp, ScatterOp, StoreOp
from tilewright.dialects.loop_access import element_in_register
from tilewright.dialects.loop_scalar import like


def _in_memory(kind: Attribute) -> Attribute:
    """Return the type of a value as memory holds it: a bool is a byte."""
    return like(kind, IntegerType(8)) if element_of(kind) == IntegerType(1) else kind


def _address(fn: FunctionText, buffer: SSAValue, offset: SSAValue) -> str:
    element, _ = memory_element(element_in_register(buffer.type))
    return fn.op(f"getelementptr inbounds {element}, ptr {fn.name(buffer)}, {fn.typed(offset)}")


def _from_memory(fn: FunctionText, value: str, kind: Attribute) -> str:
    stored = _in_memory(kind)
    if stored == kind:
        return value
    return fn.op(f"icmp ne {llvm_type(stored)} {value}, {fn.splat(stored, '0')}")


def _to_memory(fn: FunctionText, value: SSAValue) -> str:
    stored = _in_memory(value.type)
    if stored == value.type:
        return fn.name(value)
    return fn.op(f"zext {fn.typed(value)} to {llvm_type(stored)}")


def _otherwise(fn: FunctionText, op: LoadOp | GatherOp) -> str:
    """Return what a lane that the mask turns off gives, as memory holds it."""
    return "zeroinitializer" if op.otherwise is None else _to_memory(fn, op.otherwise)


def emit_load(fn: FunctionText, op: LoadOp) -> str:
    """Emit a load of an element or of consecutive elements; return its result."""
    kind = op.result.type
    stored = _in_memory(kind)
    text, (_, size) = llvm_type(stored), memory_element(kind)
    address = _address(fn, op.source, op.offset)
    if op.mask is None:
        return _from_memory(fn, fn.op(f"load {text}, ptr {address}, align {size}"), kind)
    if lanes_of(kind) == 1 and kind == element_of(kind):
        return _from_memory(fn, _branch_load(fn, op, text, address, size), kind)
    name = f"llvm.masked.load.{suffix(stored)}.p0"
    mask = llvm_type(op.mask.type)
    fn.module.declare(f"declare {text} @{name}(ptr, {mask}, {text})")
    other = _otherwise(fn, op)
    value = fn.op(f"call {text} @{name}(ptr align {size} {address}, {mask} {fn.name(op.mask)}, {text} {other})")
    return _from_memory(fn, value, kind)


def _branch_load(fn: FunctionText, op: LoadOp, text: str, address: str, size: int) -> str:
    assert op.mask is not None
    other = _otherwise(fn, op)
    before, taken, after = fn.block, fn.fresh("load"), fn.fresh("next")
    fn.line(f"br i1 {fn.name(op.mask)}, label %{taken}, label %{after}")
    fn.label(taken)
    value = fn.op(f"load {text}, ptr {address}, align {size}")
    fn.line(f"br label %{after}")
    fn.label(after)
    return fn.op(f"phi {text} [ {value}, %{taken} ], [ {other}, %{before} ]")


def emit_gather(fn: FunctionText, op: GatherOp) -> str:
    """Emit a load of one element per lane; return its result."""
    kind = op.result.type
    stored = _in_memory(kind)
    text, (_, size) = llvm_type(stored), memory_element(kind)
    lanes = lanes_of(kind)
    addresses = _address(fn, op.source, op.offset)
    name = f"llvm.masked.gather.{suffix(stored)}.v{lanes}p0"
    fn.module.declare(f"declare {text} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {text})")
    mask = "splat (i1 true)" if op.mask is None else fn.name(op.mask)
    other = "poison" if op.mask is None else _otherwise(fn, op)
    value = fn.op(
        f"call {text} @{name}(<{lanes} x ptr> align {size} {addresses}, <{lanes} x i1> {mask}, {text} {other})"
    )
    return _from_memory(fn, value, kind)


def emit_store(fn: FunctionText, op: StoreOp) -> None:
    """Emit a store of an element or of consecutive elements, or an atomic update of an element."""
    kind = op.value.type
    stored = _in_memory(kind)
    text, (_, size) = llvm_type(stored), memory_element(kind)
    value = _to_memory(fn, op.value)
    if op.mask is not None and kind != element_of(kind):
        address = _address(fn, op.target, op.offset)
        name = f"llvm.masked.store.{suffix(stored)}.p0"
        mask = llvm_type(op.mask.type)
        fn.module.declare(f"declare void @{name}({text}, ptr, {mask})")
        fn.line(f"call void @{name}({text} {value}, ptr align {size} {address}, {mask} {fn.name(op.mask)})")
        return
    after = fn.fresh("next")
    if op.mask is not None:
        taken = fn.fresh("store")
        fn.line(f"br i1 {fn.name(op.mask)}, label %{taken}, label %{after}")
        fn.label(taken)
    address = _address(fn, op.target, op.offset)
    if op.combine is None:
        fn.line(f"store {text} {value}, ptr {address}, align {size}")
    else:
        operand = fn.typed(op.value) if is_float(kind) else f"{text} {value}"
        fn.line(f"atomicrmw {_atomic(op.combine.data, kind)} ptr {address}, {operand} monotonic, align {size}")
    if op.mask is not None:
        fn.line(f"br label %{after}")
        fn.label(after)


def _atomic(combine: str, kind: Attribute) -> str:
    on_float = {"sum": "fadd", "max": "fmaximum", "min": "fminimum"}
    on_int = {"sum": "add", "max": "max", "min": "min", "umax": "umax", "umin": "umin", "any": "or", "all": "and"}
    instruction = (on_float if is_float(kind) else on_int).get(combine)
    if instruction is None or is_bf16(kind):
        raise EmitError(f"there is no atomic `{combine}` of {kind}")
    return instruction


def emit_scatter(fn: FunctionText, op: ScatterOp) -> None:
    """Emit a store of one element per lane, to distinct addresses."""
    if op.combine is not None:
        raise EmitError("there is no `cpu.scatter` that combines: it must be a loop of single elements")
    kind = op.value.type
    stored = _in_memory(kind)
    text, (_, size) = llvm_type(stored), memory_element(kind)
    lanes = lanes_of(kind)
    addresses = _address(fn, op.target, op.offset)
    name = f"llvm.masked.scatter.{suffix(stored)}.v{lanes}p0"
    fn.module.declare(f"declare void @{name}({text}, <{lanes} x ptr>, <{lanes} x i1>)")
    mask = "splat (i1 true)" if op.mask is None else fn.name(op.mask)
    value = _to_memory(fn, op.value)
    fn.line(
        f"call void @{name}({text} {value}, <{lanes} x ptr> align {size} {addresses}, "
        f"{vector_text('i1', lanes)} {mask})"
    )
