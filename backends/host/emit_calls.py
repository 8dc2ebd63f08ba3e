"""Calls of ATen operators as LLVM IR: the operands of a dedicated C function, or the stack of the dispatcher.

Both end in an i32 that is 0 when the call worked. Tensors are handles in slots (`ptr` variables); results go to the
slots of the call's results, which lie side by side.
"""

from collections.abc import Mapping, Sequence

import torch

from tilewright.backends.host.abi import device_code, dtype_code, layout_code, memory_format_code, torch_symbol
from tilewright.backends.host.arguments import Size, TensorOperand, Value
from tilewright.backends.host.helpers import BOX, BOX_BY_NEW, MOVE, RETAIN, UNLIST
from tilewright.backends.host.llvm_text import FunctionText, double_bits
from tilewright.backends.host.shims import Shim
from tilewright.dialects.aten_schema import Argument, Element, Kind, Schema
from tilewright.dialects.sym_expr import Expr, integer

_OUT_PARAMETER = "out"


def emit_shim(
    text: FunctionText, shim: Shim, arguments: Mapping[str, Value], operands: Sequence[str], results: Sequence[str]
) -> str:
    """Call a dedicated function on the slots of the call's tensors. Returns the name of its i32.

    Memory for an `out` parameter must be in the first result's slot.
    """
    passed: list[str] = []
    for parameter in shim.parameters:
        if shim.has_out and parameter.name == _OUT_PARAMETER:
            passed.append(f"ptr {_load(text, results[0])}")
        else:
            passed += _shim_operands(text, parameter.kind, arguments[parameter.name], operands)
    aliases = [r.alias for r in shim.returns if r.alias is not None]
    if not aliases:
        passed += [f"ptr {slot}" for slot in results] if not shim.has_out else []
    status = text.call("i32", shim.symbol, passed)
    if aliases and results:
        written = next(p for p in shim.parameters if p.is_write)
        argument = arguments[written.name]
        assert isinstance(argument, TensorOperand)
        text.line(f"store i64 {_retain(text, operands[argument.index])}, ptr {results[0]}")
    return status


def _shim_operands(text: FunctionText, kind: Kind, value: Value, operands: Sequence[str]) -> list[str]:
    if kind.is_list:
        return _shim_list(text, kind, value, operands)
    if not kind.optional:
        return [_shim_scalar(text, kind.element, value, operands)]
    if value is None:
        return ["ptr null"]
    if isinstance(value, TensorOperand):
        return [f"ptr {operands[value.index]}"]
    operand = _shim_scalar(text, kind.element, value, operands)
    if operand.startswith("i32 "):
        return [f"ptr {text.constant(operand)}"]
    return [f"ptr {text.stored([operand])}"]


def _shim_scalar(text: FunctionText, element: Element, value: Value, operands: Sequence[str]) -> str:
    """Return a value as C has it: a handle, i64, double, or an i32 for bool and dtype."""
    match element:
        case Element.TENSOR:
            assert isinstance(value, TensorOperand)
            return f"ptr {_load(text, operands[value.index])}"
        case Element.INT | Element.SYM_INT:
            return f"i64 {_integer(text, value)}"
        case Element.FLOAT | Element.SCALAR:
            return f"double {_double(text, value)}"
        case Element.BOOL:
            return f"i32 {int(bool(value))}"
        case Element.SCALAR_TYPE:
            return f"i32 {_dtype(value)}"
        case _:
            raise AssertionError(f"no C type for {element}")


def _shim_list(text: FunctionText, kind: Kind, value: Value, operands: Sequence[str]) -> list[str]:
    if value is None:
        return ["ptr null", "i64 0"]
    assert isinstance(value, tuple)
    if kind.optional_elements:
        items = ["ptr null" if v is None else f"ptr {_slot(v, operands)}" for v in value]
    else:
        items = [_shim_scalar(text, kind.element, v, operands) for v in value]
    if kind.element is Element.BOOL:
        array = text.constant(f"[{len(items)} x i32] [{', '.join(items)}]")
    elif kind.element in (Element.INT, Element.SYM_INT):
        array = text.array([_expression(v) for v in value])
    else:
        array = text.stored(items)
    if kind.optional:
        array = text.stored([f"ptr {array}"])
    return [f"ptr {array}", f"i64 {len(items)}"]


def emit_dispatcher(
    text: FunctionText, schema: Schema, arguments: Mapping[str, Value], operands: Sequence[str], results: Sequence[str]
) -> str:
    """Call through the dispatcher, which takes over every handle on its stack. Returns the name of the i32.

    `results` are the places of the results: slots, or where an integer goes.
    """
    stack_values = [_stable(text, a, arguments[a.name], operands) for a in schema.arguments]
    size = max(len(schema.arguments), len(schema.returns))
    stack = text.stored([f"i64 {v}" for v in stack_values] + ["i64 0"] * (size - len(stack_values)))
    name, overload = _dispatcher_name(schema.name)
    status = text.call(
        "i32",
        "aoti_torch_call_dispatcher",
        [f"ptr {text.c_string(name)}", f"ptr {text.c_string(overload)}", f"ptr {stack}"],
    )
    if not results:
        return status
    return _take_results(text, schema, stack, status, results)


def _take_results(text: FunctionText, schema: Schema, stack: str, status: str, results: Sequence[str]) -> str:
    """Move what the dispatcher left on its stack to the results, if the call worked."""
    is_list = schema.returns[0].kind.is_list
    text.use(UNLIST if is_list else MOVE)
    helper = "unlist" if is_list else "move"
    return text.value(f"call i32 @{helper}(i32 {status}, ptr {stack}, ptr {results[0]}, i64 {len(results)})")


def _stable(text: FunctionText, argument: Argument, value: Value, operands: Sequence[str]) -> str:
    """Return an argument as the dispatcher has it: 64 bits that hold the value or point to it."""
    kind = argument.kind
    if value is None:
        return "0" if kind.optional or kind.element is not Element.TENSOR else _undefined(text)
    if not kind.is_list:
        bits = _stable_scalar(text, kind.element, value, operands)
        return _box(text, bits) if kind.optional else bits
    assert isinstance(value, tuple)
    place = text.stored([])
    text.call("i32", "torch_new_list_reserve_size", [f"i64 {len(value)}", f"ptr {place}"])
    handle = text.value(f"load i64, ptr {place}")
    for item in value:
        bits = "0" if item is None else _stable_scalar(text, kind.element, item, operands)
        if kind.optional_elements and item is not None:
            bits = _box(text, bits)
        pointer = text.value(f"inttoptr i64 {handle} to ptr")
        text.call("i32", "torch_list_push_back", [f"ptr {pointer}", f"i64 {bits}"])
    return _box(text, handle) if kind.optional else handle


def _stable_scalar(text: FunctionText, element: Element, value: Value, operands: Sequence[str]) -> str:
    match element:
        case Element.TENSOR:
            return _retain(text, _slot(value, operands))
        case Element.INT | Element.SYM_INT:
            return _integer(text, value)
        case Element.FLOAT:
            if isinstance(value, (int, float)):
                return str(double_bits(value))
            return text.value(f"bitcast double {_double(text, value)} to i64")
        case Element.BOOL:
            return str(int(bool(value)))
        case Element.SCALAR_TYPE:
            return str(_dtype(value))
        case Element.DEVICE:
            assert isinstance(value, torch.device)
            kind, index = device_code(str(value))
            return str(kind << 32 | index)
        case Element.LAYOUT:
            return str(value if isinstance(value, int) else layout_code(str(value).removeprefix("torch.")))
        case Element.MEMORY_FORMAT:
            return str(value if isinstance(value, int) else memory_format_code(str(value).removeprefix("torch.")))
        case _:
            raise AssertionError(f"the dispatcher takes no {element}")


def _dispatcher_name(name: str) -> tuple[str, str]:
    namespace, operator, overload = name.split(".")
    return f"{namespace}::{operator}", "" if overload == "default" else overload


def _retain(text: FunctionText, slot: str) -> str:
    """Return a new handle, as an integer, to the tensor in a slot."""
    text.use(RETAIN)
    return text.value(f"call i64 @retain(ptr {_load(text, slot)})")


def _undefined(text: FunctionText) -> str:
    """Return a new handle, as an integer, of no tensor: how a schema's `Tensor` that is not optional is left out."""
    place = text.stored([])
    text.call("i32", "aoti_torch_new_uninitialized_tensor", [f"ptr {place}"])
    return text.value(f"load i64, ptr {place}")


def _box(text: FunctionText, bits: str) -> str:
    """Return the address, as an integer, of memory that holds 64 bits and that PyTorch will delete."""
    text.use(BOX if torch_symbol("torch_new_stable_ivalue") is not None else BOX_BY_NEW)
    return text.value(f"call i64 @box(i64 {bits})")


def _load(text: FunctionText, slot: str) -> str:
    return text.value(f"load ptr, ptr {slot}")


def _slot(value: Value, operands: Sequence[str]) -> str:
    assert isinstance(value, TensorOperand)
    return operands[value.index]


def _integer(text: FunctionText, value: Value) -> str:
    return text.expression(_expression(value))


def _expression(value: Value) -> Expr:
    assert isinstance(value, (int, Size))
    return value.expr if isinstance(value, Size) else integer(int(value))


def _double(text: FunctionText, value: Value) -> str:
    if isinstance(value, (int, float)):
        return f"0x{double_bits(value) & 0xFFFF_FFFF_FFFF_FFFF:016X}"
    return text.value(f"sitofp i64 {_integer(text, value)} to double")


def _dtype(value: Value) -> int:
    """Return the C interface's number of a dtype; a schema's default is that number already."""
    if isinstance(value, int):
        return value
    assert isinstance(value, torch.dtype)
    return dtype_code(value)
