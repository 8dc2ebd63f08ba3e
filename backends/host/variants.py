"""Which variant of a kernel for CUDA a launch takes, as far as its sizes decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sympy

from tilewright.backends.cuda.kernel import DIVISOR, UNEVEN, WIDE
from tilewright.dialects import host, tt
from tilewright.dialects.sym_expr import Expr, symbol


@dataclass(frozen=True)
class SizeVariant:
    """The variant that the sizes of one launch want."""

    fixed: int
    """The parts of its number that are known."""
    divided: tuple[Expr, ...]
    """The sizes that have to be multiples of `DIVISOR`, else the number also has `UNEVEN`."""
    reach: Expr | None
    """What has to be below `tt.NARROW_LIMIT`, else the number also has `WIDE`."""

    def number(self, value: Callable[[Expr], int]) -> int:
        """Return the variant's number, given the values of size expressions."""
        uneven = any(value(e) % DIVISOR for e in self.divided)
        wide = self.reach is not None and value(self.reach) >= tt.NARROW_LIMIT
        return self.fixed | (UNEVEN if uneven else 0) | (WIDE if wide else 0)


def size_variant(kernel: tt.FuncOp, launch: host.LaunchOp) -> SizeVariant:
    """Return what decides for a launch of a kernel."""
    sizes, names = launch.symbols.exprs, kernel.symbol_names
    first = len(kernel.args) - len(names)
    divided = [size for n, size in enumerate(sizes) if kernel.divisor(first + n) > 1 and not _is_even(size)]
    fixed = UNEVEN if any(size.is_Integer for size in divided) else 0
    reach = None
    if kernel.reach is not None:
        reach = kernel.reach.expr.xreplace({symbol(name): size for name, size in zip(names, sizes, strict=True)})
        if reach.is_Integer:
            fixed |= WIDE if reach >= tt.NARROW_LIMIT else 0
            reach = None
    return SizeVariant(fixed, () if fixed & UNEVEN else tuple(divided), reach)


def _is_even(size: Expr) -> bool:
    """Whether a size is a multiple of `DIVISOR` whatever its symbols are."""
    return all(term.as_coeff_Mul()[0] % DIVISOR == 0 for term in sympy.Add.make_args(size))
