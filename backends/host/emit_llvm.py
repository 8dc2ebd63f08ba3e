"""A host program as LLVM IR text: `i32 @run(ptr slots, ptr scalars, ptr callback)`.

The arrays are those of `frame.py`. The program is one line of blocks. Each call into PyTorch returns a status; where it
is not zero the program calls back with the number of the place (`Site`) and the reason; Python then mends the matter
and returns 0, or keeps an exception and returns 1, upon which the program returns 1 and leaves the frame for its owner
to clear.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tilewright.backends.cuda.kernel import ALIGNMENT
from tilewright.backends.host.abi import capabilities, device_code, dtype_code, dtype_of
from tilewright.backends.host.emit_calls import emit_dispatcher, emit_shim
from tilewright.backends.host.emit_cuda import KERNEL_PREFIX, CudaText
from tilewright.backends.host.frame import Frame, make_frame
from tilewright.backends.host.helpers import CONFORMS, IS_ON, RETYPE
from tilewright.backends.host.llvm_text import FunctionText
from tilewright.backends.host.plan import (
    CPU,
    HostPlan,
    byte_offset,
    element_type,
    is_buffer,
    is_read,
    layout,
    may_be_elsewhere,
)
from tilewright.backends.host.routes import CallbackRoute, DispatcherRoute, ShimRoute, choose_route
from tilewright.backends.host.sites import (
    CallSite,
    DeviceSite,
    InputSite,
    KernelSite,
    LaunchSite,
    MemorySite,
    RankSite,
    Reason,
    Site,
    VariantSite,
)
from tilewright.dialects import host


@dataclass(frozen=True)
class NativeProgram:
    """The text of a program, and what Python needs to call it and to be called back."""

    text: str
    frame: Frame
    sites: tuple[Site, ...]


def emit_llvm(
    plan: HostPlan, *, check_inputs: bool = True, record: bool = False, in_python: Collection[host.CallOp] = ()
) -> NativeProgram:
    """Print a host program.

    With `check_inputs` every tensor input must have the dtype, device, sizes and strides of its type. With `record`
    kernels and operators appear in the profiler. The calls `in_python` are made there, whatever other way there is.
    Raises `VerifyException` for a size symbol that no argument provides.
    """
    frame = make_frame(plan)
    emitter = _Emitter(plan, frame, record, in_python)
    emitter.symbols()
    for number, argument in enumerate(plan.arguments[: plan.num_inputs]):
        if check_inputs and is_buffer(argument) and not may_be_elsewhere(argument):
            emitter.check_input(argument, number)
    emitter.enter_device()
    for op in plan.ops:
        emitter.emit(op)
    emitter.finish()
    text = emitter.text.finish("define i32 @run(ptr noalias %slots, ptr noalias %scalars, ptr %callback)")
    return NativeProgram(text, frame, tuple(emitter.sites))


class _Emitter:
    def __init__(self, plan: HostPlan, frame: Frame, record: bool, in_python: Collection[host.CallOp]):
        self.text = FunctionText()
        self.sites: list[Site] = []
        self._plan = plan
        self._frame = frame
        self._in_python = in_python
        self._record = record and capabilities().record_function
        self._pointers: dict[SSAValue, str] = {}
        self._live_views: set[SSAValue] = set()
        self._failed = self.text.new_label()
        self._cuda = None if plan.device == CPU else CudaText(self.text, plan)

    def symbols(self) -> None:
        """Read the size symbols."""
        for number in self._plan.symbol_tensors:
            self._check_rank(self._plan.arguments[number], number)
        for source in self._plan.symbols:
            place = self._scalar(self._frame.symbols[source.name])
            if source.dim is not None:
                handle = self._handle(self._plan.arguments[source.argument])
                function = "aoti_torch_get_stride" if source.is_stride else "aoti_torch_get_size"
                self.text.call("i32", function, [f"ptr {handle}", f"i64 {source.dim}", f"ptr {place}"])
            self.text.bind(source.name, self.text.value(f"load i64, ptr {place}"))
        self.text.release_scratch()

    def _check_rank(self, argument: SSAValue, number: int) -> None:
        place = self.text.stored([])
        self.text.call("i32", "aoti_torch_get_dim", [f"ptr {self._handle(argument)}", f"ptr {place}"])
        rank = self.text.value(f"load i64, ptr {place}")
        differs = self.text.value(f"icmp ne i64 {rank}, {len(layout(argument).sizes)}")
        self._check(self.text.value(f"zext i1 {differs} to i32"), RankSite(argument, number))

    def check_input(self, argument: SSAValue, number: int) -> None:
        """Compare an input with its type."""
        status = self._conforms(argument)
        self._check(status, InputSite(argument, number))
        self.text.release_scratch()

    def enter_device(self) -> None:
        """Make the device of the kernels the current one until the program ends, and find its stream."""
        if self._cuda is not None:
            for status in self._cuda.enter():
                self._check(status, DeviceSite(self._plan.device))

    def emit(self, op: Operation) -> None:
        """Print one operation, and give up the handles that die with it."""
        self._emit(op)
        for value in self._plan.deaths.get(op, ()):
            self._drop(value)
        self.text.release_scratch()

    @singledispatchmethod
    def _emit(self, op: Operation) -> None:
        raise VerifyException(f"`{op.name}` is no operation of a host program")

    @_emit.register
    def _(self, op: host.AllocOp) -> None:
        self._allocate(op.result, MemorySite(op))

    @_emit.register
    def _(self, op: host.FreeOp) -> None:
        """Nothing: the plan says after which operation a handle is given up."""

    @_emit.register
    def _(self, op: host.ViewOp) -> None:
        """Nothing yet: a view becomes a handle or an address where it is used."""

    @_emit.register
    def _(self, op: host.LaunchOp) -> None:
        if op.kernel_name in self._plan.grids:
            self._launch_on_device(op)
            return
        pointers = [f"ptr {self._pointer(b)}" for b in op.buffers]
        sizes = [f"i64 {self.text.expression(e)}" for e in op.symbols.exprs]
        name = f'@"{KERNEL_PREFIX}{op.kernel_name}"'
        kinds = ", ".join(["ptr"] * len(pointers) + ["i64"] * len(sizes))
        errors = self._plan.errors.get(op.kernel_name)
        self.text.declare(f"declare {'i32' if errors else 'void'} {name}({kinds})")
        range_handle = self._begin_range(op.kernel_name)
        arguments = ", ".join(pointers + sizes)
        if not errors:
            self.text.line(f"call void {name}({arguments})")
            self._end_range(range_handle)
            return
        status = self.text.value(f"call i32 {name}({arguments})")
        self._end_range(range_handle)
        self._check(status, KernelSite(errors), status)

    def _launch_on_device(self, op: host.LaunchOp) -> None:
        assert self._cuda is not None
        name = op.kernel_name
        pointers = [self._pointer(b) for b in op.buffers]
        unknown = [
            p for p, b in zip(pointers, op.buffers, strict=True) if not self._plan.begins_at_multiple(b, ALIGNMENT)
        ]
        variant, missing = self._cuda.variant(op, unknown)
        if missing is not None:
            self._check(missing, VariantSite(name), missing)
        range_handle = self._begin_range(name)
        status = self._cuda.launch(op, variant, pointers)
        self._end_range(range_handle)
        self._check(status, LaunchSite(name), status)

    @_emit.register
    def _(self, op: host.CallOp) -> None:
        for operand in op.operands:
            self._ensure_handle(operand)
        route = CallbackRoute() if op in self._in_python else choose_route(op)
        site = CallSite(op, route)
        operands = [self._slot(v) for v in op.operands]
        results = [self._slot(v) for v in op.results]
        if isinstance(route, ShimRoute) and route.shim.has_out:
            self._allocate(op.results[0], MemorySite(op))
        if isinstance(route, CallbackRoute):
            self._check(self._call_back(self._site(site), Reason.RUN), None)
        else:
            range_handle = self._begin_range(op.operator)
            match route:
                case ShimRoute():
                    status = emit_shim(self.text, route.shim, route.arguments, operands, results)
                case DispatcherRoute():
                    status = emit_dispatcher(self.text, route.schema, route.arguments, operands, results)
            self._end_range(range_handle)
            self._check(status, site)
        self._take_integers(op, results)
        if not isinstance(route, CallbackRoute):
            self._check_results(op, route)

    def _take_integers(self, op: host.CallOp, slots: Sequence[str]) -> None:
        """Move integers out of a call's slots, at once: where the program fails, slots are given up as handles."""
        for result, slot in zip(op.results, slots, strict=True):
            if result in self._frame.scalars:
                number = self.text.value(f"load i64, ptr {slot}")
                self.text.line(f"store i64 0, ptr {slot}")
                self.text.line(f"store i64 {number}, ptr {self._scalar(self._frame.scalars[result])}")

    @_emit.register
    def _(self, op: host.SizeOp) -> None:
        value = self.text.expression(op.size.expr)
        self.text.line(f"store i64 {value}, ptr {self._scalar(self._frame.scalars[op.result])}")

    def finish(self) -> None:
        """Put the results in their slots and return."""
        constants = set(self._plan.arguments[self._plan.num_inputs :])
        results = list(filter(is_buffer, self._plan.results))
        for value in results:  # while the buffer that a view looks into still has its handle
            if value not in constants:
                self._ensure_handle(value)
        places: dict[SSAValue, str] = {}
        for number, value in enumerate(results, self._frame.first_result):
            target = self._slot_number(number)
            if value in places or value in constants:
                handle = self.text.value(f"load ptr, ptr {places.get(value) or self._slot(value)}")
                status = self.text.call("i32", "aoti_torch_new_tensor_handle", [f"ptr {handle}", f"ptr {target}"])
                self._check(status, None)
            else:
                source = self._slot(value)
                self.text.line(f"store ptr {self.text.value(f'load ptr, ptr {source}')}, ptr {target}")
                self.text.line(f"store ptr null, ptr {source}")
            places.setdefault(value, target)
        self._leave(0)
        self.text.start_block(self._failed)
        self._leave(1)

    def _leave(self, status: int) -> None:
        if self._cuda is not None:
            self._cuda.leave()
        self.text.line(f"ret i32 {status}")

    def _slot(self, value: SSAValue) -> str:
        return self._slot_number(self._frame.slots[value])

    def _handle(self, value: SSAValue) -> str:
        """Return the tensor handle of a value that has one."""
        return self.text.value(f"load ptr, ptr {self._slot(value)}")

    def _slot_number(self, number: int) -> str:
        return self.text.value(f"getelementptr ptr, ptr %slots, i64 {number}")

    def _scalar(self, number: int) -> str:
        return self.text.value(f"getelementptr i64, ptr %scalars, i64 {number}")

    def _site(self, site: Site) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def _call_back(self, site: int, reason: Reason | str) -> str:
        return self.text.value(f"call i32 %callback(i32 {site}, i32 {reason}, ptr %slots, ptr %scalars)")

    def _check(self, status: str, site: Site | None, reason: Reason | str = Reason.FAILED) -> None:
        """Go on if the status is 0; else let Python mend it, if there is a site, or fail."""
        good = self.text.new_label()
        bad = self._failed if site is None else self.text.new_label()
        worked = self.text.value(f"icmp eq i32 {status}, 0")
        self.text.line(f"br i1 {worked}, label %{good}, label %{bad}")
        if site is not None:
            self.text.start_block(bad)
            mended = self.text.value(f"icmp eq i32 {self._call_back(self._site(site), reason)}, 0")
            self.text.line(f"br i1 {mended}, label %{good}, label %{self._failed}")
        self.text.start_block(good)

    def _allocate(self, value: SSAValue, site: MemorySite) -> None:
        kind = layout(value)
        device_type, device_index = device_code(kind.device)
        status = self.text.call(
            "i32",
            "aoti_torch_empty_strided",
            [
                f"i64 {len(kind.sizes)}",
                f"ptr {self.text.array(kind.sizes)}",
                f"ptr {self.text.array(kind.strides)}",
                f"i32 {dtype_code(dtype_of(element_type(value)))}",
                f"i32 {device_type}",
                f"i32 {device_index}",
                f"ptr {self._slot(value)}",
            ],
        )
        self._check(status, site)

    def _ensure_handle(self, value: SSAValue) -> None:
        """Make the tensor object of a view that has none yet."""
        root = self._plan.root(value)
        if root is value or value in self._live_views:
            return
        self._live_views.add(value)
        kind = layout(value)
        shape = [f"i64 {len(kind.sizes)}", f"ptr {self.text.array(kind.sizes)}", f"ptr {self.text.array(kind.strides)}"]
        handle = self._handle(root)
        if element_type(value) == element_type(root):
            increment = self.text.expression(kind.offset - layout(root).offset)
            status = self.text.call(
                "i32",
                "aoti_torch__reinterpret_tensor",
                [f"ptr {handle}", *shape, f"i64 {increment}", f"ptr {self._slot(value)}"],
            )
        else:
            offset = self.text.expression(byte_offset(value, root))
            root_bytes = dtype_of(element_type(root)).itemsize
            code = dtype_code(dtype_of(element_type(value)))
            self.text.use(RETYPE)
            arguments = [f"ptr {handle}", f"i64 {root_bytes}", f"i64 {offset}", f"i32 {code}", *shape]
            status = self.text.value(f"call i32 @retype({', '.join(arguments)}, ptr {self._slot(value)})")
        assert isinstance(value.owner, Operation)
        self._check(status, MemorySite(value.owner))

    def _drop(self, value: SSAValue) -> None:
        """Give up a handle, if the value has one."""
        if value not in self._frame.slots or (value in self._plan.roots and value not in self._live_views):
            return
        self._live_views.discard(value)
        slot = self._slot(value)
        self.text.call("i32", "aoti_torch_delete_tensor_object", [f"ptr {self.text.value(f'load ptr, ptr {slot}')}"])
        self.text.line(f"store ptr null, ptr {slot}")

    def _pointer(self, value: SSAValue) -> str:
        """Return the address of a buffer's first element."""
        known = self._pointers.get(value)
        if known is not None:
            return known
        root = self._plan.root(value)
        if root is value:
            place = self.text.stored([])
            handle = self._handle(value)
            status = self.text.call("i32", "aoti_torch_get_data_ptr", [f"ptr {handle}", f"ptr {place}"])
            if value in self._plan.arguments:
                self._check(status, InputSite(value, list(self._plan.arguments).index(value)))
            pointer = self.text.value(f"load ptr, ptr {place}")
        else:
            offset = byte_offset(value, root)
            base = self._pointer(root)
            pointer = (
                base
                if offset == 0
                else self.text.value(f"getelementptr i8, ptr {base}, i64 {self.text.expression(offset)}")
            )
        self._pointers[value] = pointer
        return pointer

    def _conforms(self, value: SSAValue) -> str:
        """Compare a tensor with its type; return the name of a status."""
        kind = layout(value)
        self.text.use(CONFORMS)
        arguments = [
            f"ptr {self._handle(value)}",
            f"i32 {device_code(kind.device)[0]}",
            f"i32 {dtype_code(dtype_of(element_type(value)))}",
            f"i64 {len(kind.sizes)}",
            f"ptr {self.text.array(kind.sizes)}",
            f"ptr {self.text.array(kind.strides)}",
        ]
        status = self.text.value(f"call i32 @conforms({', '.join(arguments)})")
        if ":" not in kind.device:
            return status  # of this kind there is one, whatever number it gives itself
        self.text.use(IS_ON)
        elsewhere = self.text.value(f"call i32 @is_on(ptr {self._handle(value)}, i32 {device_code(kind.device)[1]})")
        return self.text.value(f"or i32 {status}, {elsewhere}")

    def _check_results(self, op: host.CallOp, route: ShimRoute | DispatcherRoute) -> None:
        """Compare results with their types: what PyTorch chose may differ from what its meta function said."""
        if isinstance(route, ShimRoute) and (route.shim.has_out or any(r.alias for r in route.shim.returns)):
            return
        for result in op.results:
            if is_buffer(result) and is_read(result) and not may_be_elsewhere(result):
                self._check(self._conforms(result), CallSite(op, route), Reason.CONFORM)

    def _begin_range(self, name: str) -> str | None:
        if not self._record:
            return None
        place = self.text.stored([])
        self.text.call(
            "i32",
            "aoti_record_function_start",
            [f"ptr {self.text.c_string(name)}", "ptr null", "ptr null", "i64 0", f"ptr {place}"],
        )
        return self.text.value(f"load ptr, ptr {place}")

    def _end_range(self, handle: str | None) -> None:
        if handle is not None:
            self.text.call("i32", "aoti_record_function_end", [f"ptr {handle}"])
