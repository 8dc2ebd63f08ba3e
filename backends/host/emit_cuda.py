"""Launches of kernels on a CUDA device as LLVM IR: the device, its stream, the kernel's variant, the call itself."""

from collections.abc import Sequence

from tilewright.backends.cuda.kernel import ALIGNMENT, DIVISOR, SCRATCH_POINTERS, UNALIGNED, UNEVEN, WIDE
from tilewright.backends.host.abi import device_code
from tilewright.backends.host.helpers import LAUNCH
from tilewright.backends.host.llvm_text import FunctionText
from tilewright.backends.host.plan import HostPlan
from tilewright.dialects import host, tt

KERNEL_PREFIX = "kernel."
"""What goes before a kernel's name in the symbols of a program, so that no kernel hides a function of PyTorch."""


class CudaText:
    """What a program with kernels on a CUDA device says of it."""

    def __init__(self, text: FunctionText, plan: HostPlan):
        self._text = text
        self._plan = plan
        self._guard = text.variable()
        self._stream = text.variable()
        _, self._index = device_code(plan.device)

    def enter(self) -> list[str]:
        """Make the device the current one and ask for its current stream. Returns the names of their statuses."""
        guard, stream = self._guard, self._stream
        return [
            self._text.call("i32", "aoti_torch_create_cuda_guard", [f"i32 {self._index}", f"ptr {guard}"]),
            self._text.call("i32", "aoti_torch_get_current_cuda_stream", [f"i32 {self._index}", f"ptr {stream}"]),
        ]

    def leave(self) -> None:
        """Make the device current again that was before, on any way out: there need not have been an `enter`."""
        guard = self._text.value(f"load ptr, ptr {self._guard}")
        self._text.call("i32", "aoti_torch_delete_cuda_guard", [f"ptr {guard}"])

    def variant(self, op: host.LaunchOp, pointers: Sequence[str]) -> tuple[str, str | None]:
        """Choose a kernel's variant by its sizes and the addresses of which nothing is known.

        Returns a pointer to the variant, and the name of an i32 that is one more than its number where it has to be
        compiled first, else 0.
        """
        text, sizes = self._text, self._plan.variants[op]
        parts: list[str] = []
        if pointers:
            parts.append(self._if_uneven(pointers, "ptrtoint ptr {} to i64", ALIGNMENT, UNALIGNED))
        if sizes.divided:
            parts.append(self._if_uneven([text.expression(e) for e in sizes.divided], "add i64 {}, 0", DIVISOR, UNEVEN))
        if sizes.reach is not None:
            wide = text.value(f"icmp sge i64 {text.expression(sizes.reach)}, {tt.NARROW_LIMIT}")
            parts.append(text.value(f"select i1 {wide}, i64 {WIDE}, i64 0"))
        number = str(sizes.fixed)
        for part in parts:
            number = text.value(f"or i64 {number}, {part}")
        variant = self._place(op.kernel_name, number)
        if not parts:
            return variant, None
        function = text.value(f"load ptr, ptr {variant}")
        is_missing = text.value(f"icmp eq ptr {function}, null")
        reason = text.value(f"trunc i64 {text.value(f'add i64 {number}, 1')} to i32")
        return variant, text.value(f"select i1 {is_missing}, i32 {reason}, i32 0")

    def _if_uneven(self, values: Sequence[str], as_integer: str, divisor: int, part: int) -> str:
        """Return an i64 that is `part` unless all values are multiples of a power of two."""
        text = self._text
        bits = text.value(as_integer.format(values[0]))
        for value in values[1:]:
            bits = text.value(f"or i64 {bits}, {text.value(as_integer.format(value))}")
        rest = text.value(f"and i64 {bits}, {divisor - 1}")
        is_even = text.value(f"icmp eq i64 {rest}, 0")
        return text.value(f"select i1 {is_even}, i64 0, i64 {part}")

    def launch(self, op: host.LaunchOp, variant: str, pointers: Sequence[str]) -> str:
        """Launch a kernel. Returns the name of the driver's status."""
        text = self._text
        text.use(LAUNCH)
        programs = text.expression(self._plan.grids[op.kernel_name].programs(op))
        values = [f"ptr {p}" for p in pointers] + [f"i64 {text.expression(e)}" for e in op.symbols.exprs]
        values += ["ptr null"] * SCRATCH_POINTERS
        stream = text.value(f"load ptr, ptr {self._stream}")
        arguments = [
            f"ptr {self._name(op.kernel_name)}",
            f"ptr {variant}",
            f"i64 {programs}",
            f"ptr {text.stored(values)}",
            f"i64 {len(values)}",
            f"ptr {stream}",
        ]
        return text.value(f"call i32 @launch({', '.join(arguments)})")

    def _name(self, kernel: str) -> str:
        return f'@"{KERNEL_PREFIX}{kernel}"'

    def _place(self, kernel: str, variant: str) -> str:
        name = self._name(kernel)
        self._text.use(LAUNCH)
        self._text.declare(f"{name} = external global %kernel.fields")
        return self._text.value(f"getelementptr %kernel.fields, ptr {name}, i64 0, i32 3, i64 {variant}")
