"""Launches of kernels on a CUDA device as LLVM IR: the device, its stream, the kernel's variant, the call itself."""

from collections.abc import Sequence

from tilewright.backends.cuda.kernel import ALIGNMENT, SCRATCH_POINTERS
from tilewright.backends.host.abi import device_code
from tilewright.backends.host.helpers import LAUNCH
from tilewright.backends.host.llvm_text import FunctionText
from tilewright.backends.host.plan import HostPlan
from tilewright.dialects import host

KERNEL_PREFIX = "kernel."
"""What goes before a kernel's name in the symbols of a program, so that no kernel hides a function of PyTorch."""

_ALIGNED, _UNALIGNED = 0, 1


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

    def variant(self, kernel: str, pointers: Sequence[str]) -> tuple[str, str | None]:
        """Choose a kernel's variant by the addresses of which nothing is known.

        Returns a pointer to the variant, and the name of an i32 that is not 0 where it has to be compiled first.
        """
        aligned = self._place(kernel, _ALIGNED)
        if not pointers:
            return aligned, None
        text = self._text
        bits = text.value(f"ptrtoint ptr {pointers[0]} to i64")
        for pointer in pointers[1:]:
            other = text.value(f"ptrtoint ptr {pointer} to i64")
            bits = text.value(f"or i64 {bits}, {other}")
        rest = text.value(f"and i64 {bits}, {ALIGNMENT - 1}")
        is_aligned = text.value(f"icmp eq i64 {rest}, 0")
        variant = text.value(f"select i1 {is_aligned}, ptr {aligned}, ptr {self._place(kernel, _UNALIGNED)}")
        function = text.value(f"load ptr, ptr {variant}")
        is_missing = text.value(f"icmp eq ptr {function}, null")
        return variant, text.value(f"zext i1 {is_missing} to i32")

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

    def _place(self, kernel: str, variant: int) -> str:
        name = self._name(kernel)
        self._text.use(LAUNCH)
        self._text.declare(f"{name} = external global %kernel.fields")
        return self._text.value(f"getelementptr %kernel.fields, ptr {name}, i64 0, i32 3, i64 {variant}")
