"""How each operator of a host program is called: by a dedicated C function, through the dispatcher, or in Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from xdsl.dialects.builtin import AnyFloat

from tilewright.backends.host.abi import capabilities, torch_symbol
from tilewright.backends.host.arguments import Size, TensorOperand, Value, argument_values
from tilewright.backends.host.plan import element_type, is_buffer, layout
from tilewright.backends.host.shims import Shim, find_shim
from tilewright.dialects import aten_schema, host
from tilewright.dialects.aten_schema import Argument, Element, Kind, Schema


@dataclass(frozen=True)
class ShimRoute:
    """Call a dedicated C function."""

    shim: Shim
    arguments: Mapping[str, Value]


@dataclass(frozen=True)
class DispatcherRoute:
    """Call through `aoti_torch_call_dispatcher`."""

    schema: Schema
    arguments: Mapping[str, Value]


@dataclass(frozen=True)
class CallbackRoute:
    """Call back into Python."""


Route = ShimRoute | DispatcherRoute | CallbackRoute


def route_name(route: Route) -> str:
    """Return the key under which a call is counted."""
    match route:
        case ShimRoute():
            return "shim"
        case DispatcherRoute():
            return "dispatcher"
        case CallbackRoute():
            return "callback"
    assert_never(route)


def choose_route(call: host.CallOp) -> Route:
    """Choose the fastest way that can express the call."""
    schema = aten_schema.lookup(call.operator)
    if schema is None:
        return CallbackRoute()
    given = argument_values(call.arguments.data)
    arguments = {a.name: _normalize(given.get(a.name, a.default), a.kind) for a in schema.arguments}
    if not all(_holds_tensors(arguments[a.name]) for a in schema.arguments if a.kind.element is Element.TENSOR):
        return CallbackRoute()
    devices = _devices(call)
    shim = find_shim(call.operator, devices[0].partition(":")[0]) if devices else None
    if shim is not None and _shim_fits(shim, arguments, call):
        return ShimRoute(shim, arguments)
    if capabilities().dispatcher and _dispatcher_fits(schema, arguments, call):
        return DispatcherRoute(schema, arguments)
    return CallbackRoute()


def _normalize(value: Value, kind: Kind) -> Value:
    """Spell out a list that is given by its one value, as `int[2] stride=1` allows."""
    if kind.length is None or value is None or isinstance(value, tuple):
        return value
    return (value,) * kind.length


def _holds_tensors(value: Value) -> bool:
    """Whether the value of a tensor argument has no numbers, of which Python alone makes tensors."""
    items = value if isinstance(value, tuple) else (value,)
    return all(v is None or isinstance(v, TensorOperand) for v in items)


def _devices(call: host.CallOp) -> list[str]:
    """Return the devices of a call's tensors."""
    return list(dict.fromkeys(layout(v).device for v in (*call.operands, *call.results) if is_buffer(v)))


def _shim_fits(shim: Shim, arguments: Mapping[str, Value], call: host.CallOp) -> bool:
    if torch_symbol(shim.symbol) is None:
        return False
    if len(_devices(call)) > 1 and not shim.on_any_device:
        return False
    if not shim.has_out and len(shim.returns) != len(call.results):
        return False
    return all(_shim_argument_fits(p, arguments[p.name], call) for p in shim.parameters if p.name in arguments)


def _shim_argument_fits(parameter: Argument, value: Value, call: host.CallOp) -> bool:
    """A Scalar arrives as a double, which means the same for floating-point tensors only."""
    if parameter.kind.element is not Element.SCALAR:
        return True
    is_real = isinstance(value, (int, float, Size))
    return is_real and all(isinstance(element_type(r), AnyFloat) for r in call.results if is_buffer(r))


# Strings are left out: a conversion inside PyTorch (2.11 to 2.13) leaks each one.
_DISPATCHED = frozenset(
    {
        Element.TENSOR,
        Element.INT,
        Element.SYM_INT,
        Element.FLOAT,
        Element.BOOL,
        Element.SCALAR_TYPE,
        Element.DEVICE,
        Element.LAYOUT,
        Element.MEMORY_FORMAT,
    }
)


def _dispatcher_fits(schema: Schema, arguments: Mapping[str, Value], call: host.CallOp) -> bool:
    for argument in schema.arguments:
        if argument.kind.element in _DISPATCHED:
            continue
        # The type of an optional value that is absent is never looked at.
        if not (argument.kind.optional and arguments[argument.name] is None):
            return False
    if any(
        r.kind.optional or r.kind.element not in (Element.TENSOR, Element.INT, Element.SYM_INT) for r in schema.returns
    ):
        return False
    # PyTorch (2.11) takes the type of the last result for the first, and so on.
    kinds = [r.kind.element for r in schema.returns]
    if kinds != kinds[::-1]:
        return False
    lists = [r for r in schema.returns if r.kind.is_list]
    if lists:
        return len(schema.returns) == 1 and lists[0].kind.element is Element.TENSOR
    return len(schema.returns) == len(call.results)
