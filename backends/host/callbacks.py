"""What a native program asks of Python: to run an operator, to mend a call that failed, to explain an error.

Nothing may be raised through native code, so an exception is kept for the thread that made the call, the program returns, and
`take_error` gives it out to be raised again.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import NoneType
from xdsl.ir import SSAValue

from tilewright.backends.host.abi import dtype_of, last_error_text, torch_function
from tilewright.backends.host.arguments import argument_values, fill_in, find_operator
from tilewright.backends.host.emit_llvm import CallSite, InputSite, MemorySite, NativeProgram, Reason, Site
from tilewright.backends.host.entry import delete_handle, new_handle, take_tensor
from tilewright.backends.host.expressions import evaluate
from tilewright.backends.host.frame import Frame
from tilewright.backends.host.plan import element_type, is_buffer, layout
from tilewright.backends.host.python_support import conform, input_error
from tilewright.dialects import aten_schema, host
from tilewright.dialects.sym_expr import Symbol

_Signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class Callbacks:
    """The Python side of one native program; several threads may be in it at once."""

    def __init__(self, native: NativeProgram):
        self._frame = native.frame
        self._sites = native.sites
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

    def _handle(self, site: int, reason: int, slots: int, scalars: int) -> int:
        try:
            _Moment(self._frame, slots, scalars).serve(self._sites[site], Reason(reason))
        except BaseException as error:  # noqa: BLE001  even KeyboardInterrupt has to wait until the native frames are gone
            self._errors[threading.get_ident()] = error
            return 1
        return 0


class _Moment:
    """A program stopped at one place: its frame, as Python sees it."""

    def __init__(self, frame: Frame, slots: int, scalars: int):
        self._frame = frame
        self._slots = (ctypes.c_void_p * frame.num_slots).from_address(slots)
        self._scalars = (ctypes.c_int64 * frame.num_scalars).from_address(scalars)

    def serve(self, site: Site, reason: Reason) -> None:
        """Do what the program asks, or raise the exception that says why it cannot go on."""
        match site:
            case InputSite():
                raise self._input_error(site)
            case MemorySite():
                kind = site.op.results[0].type
                raise RuntimeError(last_error_text() or f"`{site.op.name}` cannot make {kind}")
            case CallSite():
                self._serve_call(site.call, reason)

    def _serve_call(self, call: host.CallOp, reason: Reason) -> None:
        match reason:
            case Reason.RUN:
                self._store(call, self._run(call))
            case Reason.FAILED:
                text = last_error_text()
                results = self._run(call)
                schema = aten_schema.lookup(call.operator)
                if schema is None or schema.is_mutable:
                    raise RuntimeError(text or f"`{call.operator}` failed, and worked when repeated")
                self._store(call, results)
            case Reason.CONFORM:
                self._store(call, [self._tensor(r) if is_buffer(r) else None for r in call.results])

    def _run(self, call: host.CallOp) -> list[object]:
        """Call an operator as eager does; return its results, lists taken apart."""
        tensors = [self._tensor(v) for v in call.operands]
        sizes = self._sizes()
        arguments = {n: fill_in(v, tensors, sizes) for n, v in argument_values(call.arguments.data).items()}
        return flatten(find_operator(call.operator)(**arguments))

    def _store(self, call: host.CallOp, results: Sequence[object]) -> None:
        if len(results) != len(call.results):
            raise RuntimeError(f"`{call.operator}` was traced with {len(call.results)} results, returned {len(results)}")
        sizes = self._sizes()
        for value, result in zip(call.results, results, strict=True):
            slot = self._frame.slots[value]
            old, self._slots[slot] = self._slots[slot], None
            if is_buffer(value):
                assert isinstance(result, Tensor)
                self._slots[slot] = new_handle(self._conform(call, value, result, sizes))
            elif not isinstance(value.type, NoneType):
                assert isinstance(result, int)
                # An integer goes through its slot, like what the dispatcher returns.
                self._slots[slot] = result
            if old is not None:
                delete_handle(old)

    def _conform(self, call: host.CallOp, value: SSAValue, result: Tensor, sizes: Mapping[Symbol, int]) -> Tensor:
        kind = layout(value)
        return conform(
            result,
            call.operator,
            dtype_of(element_type(value)),
            [evaluate(e, sizes) for e in kind.sizes],
            [evaluate(e, sizes) for e in kind.strides],
        )

    def _input_error(self, site: InputSite) -> Exception:
        kind, sizes = layout(site.argument), self._sizes()
        return input_error(
            self._tensor(site.argument),
            site.number,
            dtype_of(element_type(site.argument)),
            [evaluate(e, sizes) for e in kind.sizes],
            [evaluate(e, sizes) for e in kind.strides],
            torch.device(kind.device),
        )

    def _sizes(self) -> dict[Symbol, int]:
        return {symbol: self._scalars[number] for symbol, number in self._frame.symbols.items()}

    def _tensor(self, value: SSAValue) -> Tensor:
        """Return the tensor in a value's slot, which keeps its handle."""
        handle = ctypes.c_void_p()
        status = torch_function("aoti_torch_new_tensor_handle")(
            ctypes.c_void_p(self._slots[self._frame.slots[value]]), ctypes.byref(handle)
        )
        assert status == 0
        assert handle.value is not None
        return take_tensor(handle.value)


def flatten(results: object) -> list[object]:
    """Return an operator's results side by side, those in lists included."""
    if isinstance(results, (list, tuple)):
        return [item for result in results for item in flatten(result)]
    return [results]
