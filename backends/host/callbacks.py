"""What a native program asks of Python: to run an operator, to mend a call that failed, to explain an error.

Nothing may be raised through native code, so an exception is kept for the thread that made the call, the program
returns, and `take_error` gives it out to be raised again.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from xdsl.ir import SSAValue

from tilewright.backends.cuda import kernel as cuda
from tilewright.backends.host.abi import dtype_of, last_error_text, torch_function
from tilewright.backends.host.arguments import Value, argument_values, fill_in, find_operator
from tilewright.backends.host.emit_llvm import NativeProgram
from tilewright.backends.host.entry import delete_handle, new_handle, take_tensor
from tilewright.backends.host.expressions import evaluate
from tilewright.backends.host.frame import Frame
from tilewright.backends.host.plan import element_type, is_buffer, is_none, is_read, layout
from tilewright.backends.host.python_support import Shape, conform, input_error, rank_error
from tilewright.backends.host.sites import (
    CallSite,
    DeviceSite,
    InputSite,
    KernelSite,
    LaunchSite,
    MemorySite,
    RankSite,
    Reason,
    VariantSite,
)
from tilewright.backends.host.torch_internals import Overload
from tilewright.dialects import aten_schema, host
from tilewright.dialects.cpu_errors import exception_of
from tilewright.dialects.sym import free_symbols
from tilewright.dialects.sym_expr import Symbol

_Signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class Callbacks:
    """The Python side of one native program; several threads may be in it at once."""

    def __init__(self, native: NativeProgram, kernels: Mapping[str, cuda.Kernel]):
        """`kernels` are those that the program launches on a CUDA device."""
        self._kernels = kernels
        self._frame = native.frame
        self._sites = native.sites
        self._slots_type = ctypes.c_void_p * native.frame.num_slots
        self._scalars_type = ctypes.c_int64 * native.frame.num_scalars
        self.worked_in_python: set[host.CallOp] = set()
        """The calls that failed, and worked when Python repeated them: the way that was chosen does not suit them."""
        self._operators: dict[host.CallOp, _Operator] = {}
        self._errors: dict[int, BaseException] = {}
        self._function = _Signature(self._handle)

    @property
    def address(self) -> int:
        """The address of the function to call."""
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        return address

    def take_error(self) -> BaseException:
        """Return the exception that ended this thread's last call, and forget it."""
        return self._errors.pop(threading.get_ident(), None) or RuntimeError("the host program failed")

    def _handle(self, number: int, reason: int, slots: int, scalars: int) -> int:
        try:
            # First of all: what follows may call into PyTorch, which overwrites it.
            text = None if reason == Reason.RUN else last_error_text()
            moment = _Moment(
                self._frame, self._slots_type.from_address(slots), self._scalars_type.from_address(scalars)
            )
            match self._sites[number]:
                case InputSite() as site:
                    raise moment.input_error(site)
                case RankSite(argument, position):
                    raise rank_error(moment.tensor(argument), position, len(layout(argument).sizes))
                case MemorySite(host.AllocOp() as op):
                    moment.allocate(op.result)
                case MemorySite(op):
                    raise RuntimeError(text or f"`{op.name}` cannot make {op.results[0].type}")
                case DeviceSite(device):
                    raise RuntimeError(text or f"cannot run kernels on {device}")
                case VariantSite(kernel):
                    self._kernels[kernel].provide(reason - 1)
                case LaunchSite(kernel):
                    raise self._kernels[kernel].error(reason)
                case KernelSite(errors):
                    raise exception_of(errors, reason)
                case CallSite(call):
                    self._serve_call(call, Reason(reason), text, moment)
        except BaseException as error:  # noqa: BLE001  even KeyboardInterrupt has to wait until the native frames are gone
            self._errors[threading.get_ident()] = error
            return 1
        return 0

    def _serve_call(self, call: host.CallOp, reason: Reason, text: str | None, moment: "_Moment") -> None:
        """Run an operator, perhaps again for eager's exception, or copy results to the layout that is expected."""
        operator = self._operators.get(call)
        if operator is None:
            operator = self._operators[call] = _Operator.of(call)
        sizes = moment.sizes()
        if reason == Reason.CONFORM:
            moment.put({r: moment.tensor(r) for r in call.results if is_buffer(r) and is_read(r)}, operator, sizes)
            return
        tensors = [moment.tensor(v) for v in call.operands]
        results = operator.run(tensors, sizes)
        if reason == Reason.FAILED and operator.is_mutable:
            raise RuntimeError(text or f"`{operator.name}` failed, and worked when repeated")
        if len(results) != len(call.results):
            raise RuntimeError(f"`{operator.name}` was traced with {len(call.results)} results, gave {len(results)}")
        if reason == Reason.FAILED:
            self.worked_in_python.add(call)
        moment.put({v: r for v, r in zip(call.results, results, strict=True) if is_read(v)}, operator, sizes)


@dataclass(frozen=True)
class _Operator:
    """A call as Python makes it."""

    name: str
    function: Overload
    arguments: Mapping[str, Value]
    is_mutable: bool
    has_results: bool
    """Whether None is an undefined result rather than no result."""
    shapes: Mapping[SSAValue, Shape]
    """The shapes of results in which no symbol occurs."""

    @staticmethod
    def of(call: host.CallOp) -> "_Operator":
        schema = aten_schema.lookup(call.operator)
        is_mutable = schema is None or schema.is_mutable
        shapes: dict[SSAValue, Shape] = {
            v: shape_of_type(v, {}) for v in call.results if is_buffer(v) and not _symbols(v)
        }
        function = find_operator(call.operator)
        arguments = argument_values(call.arguments.data)
        return _Operator(call.operator, function, arguments, is_mutable, bool(call.results), shapes)

    def run(self, tensors: Sequence[Tensor], sizes: Mapping[Symbol, int]) -> list[object]:
        """Call the operator as eager does; return its results, those in lists side by side."""
        returned = self.function(**{n: fill_in(v, tensors, sizes) for n, v in self.arguments.items()})
        return [] if returned is None and not self.has_results else flatten(returned)


@dataclass(frozen=True)
class _Moment:
    """A program stopped at one place: its frame, as Python sees it."""

    frame: Frame
    slots: "ctypes.Array[ctypes.c_void_p]"
    scalars: "ctypes.Array[ctypes.c_int64]"

    def put(self, results: Mapping[SSAValue, object], operator: _Operator, sizes: Mapping[Symbol, int]) -> None:
        """Put results in their slots, in the layouts that the program expects; all of them, or none with an error."""
        ready = {v: self._ready(v, r, operator, sizes) for v, r in results.items() if not is_none(v)}
        for value, result in ready.items():
            slot = self.frame.slots[value]
            old = self.slots[slot]
            # An integer goes through its slot, like what the dispatcher returns.
            self.slots[slot] = new_handle(result) if isinstance(result, Tensor) else result
            if old is not None:
                delete_handle(old)

    @staticmethod
    def _ready(value: SSAValue, result: object, operator: _Operator, sizes: Mapping[Symbol, int]) -> Tensor | int:
        if is_buffer(value):
            return conform(result, operator.name, operator.shapes.get(value) or shape_of_type(value, sizes))
        if not isinstance(result, int):
            raise RuntimeError(f"`{operator.name}` was traced to give {value.type}, gave {type(result).__name__}")
        return result

    def allocate(self, value: SSAValue) -> None:
        """Make a buffer after all, which raises eager's exception, or else find memory that has become free."""
        shape = shape_of_type(value, self.sizes())
        made = torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device=layout(value).device)
        self.slots[self.frame.slots[value]] = new_handle(made)

    def input_error(self, site: InputSite) -> Exception:
        """Return the exception for an input that is not what the program was compiled for."""
        shape = shape_of_type(site.argument, self.sizes())
        device = torch.device(layout(site.argument).device)
        return input_error(self.tensor(site.argument), site.number, shape, device)

    def sizes(self) -> dict[Symbol, int]:
        """Return the values of the size symbols."""
        return {symbol: self.scalars[number] for symbol, number in self.frame.symbols.items()}

    def tensor(self, value: SSAValue) -> Tensor:
        """Return the tensor in a value's slot, which keeps its handle."""
        handle = ctypes.c_void_p()
        old = ctypes.c_void_p(self.slots[self.frame.slots[value]])
        status = torch_function("aoti_torch_new_tensor_handle")(old, ctypes.byref(handle))
        assert status == 0
        assert handle.value is not None
        return take_tensor(handle.value)


def shape_of_type(value: SSAValue, sizes: Mapping[Symbol, int]) -> Shape:
    """Return what a program is compiled to expect of a value, with these sizes."""
    kind = layout(value)
    return Shape(
        dtype=dtype_of(element_type(value)),
        sizes=[evaluate(e, sizes) for e in kind.sizes],
        strides=[evaluate(e, sizes) for e in kind.strides],
    )


def _symbols(value: SSAValue) -> Sequence[Symbol]:
    kind = layout(value)
    return free_symbols((*kind.sizes, *kind.strides))


def flatten(results: object) -> list[object]:
    """Return an operator's results side by side, those in lists included."""
    if isinstance(results, (list, tuple)):
        return [item for result in cast("Sequence[object]", results) for item in flatten(result)]
    return [results]
