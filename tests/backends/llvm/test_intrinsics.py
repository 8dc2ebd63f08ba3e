"""Code for `loop.intrinsic`."""

import contextlib

import pytest
from xdsl.dialects.builtin import VectorType, f32, f64, i64
from xdsl.ir import Attribute

from tilewright.backends.llvm.builder import FunctionText, ModuleText
from tilewright.backends.llvm.emit_intrinsic import emit_intrinsic
from tilewright.backends.llvm.target import host_target
from tilewright.backends.llvm.types import EmitError
from tilewright.dialects.loop_scalar import INTRINSICS

FLOATS: tuple[Attribute, ...] = (f32, f64, VectorType(f32, [8]), VectorType(f64, [4]))
INTEGERS: tuple[Attribute, ...] = (i64, VectorType(i64, [4]))


@pytest.mark.parametrize("name", INTRINSICS)
def test_every_intrinsic_has_code(name: str) -> None:
    def has_code(kind: Attribute) -> bool:
        with contextlib.suppress(EmitError):
            text = FunctionText(ModuleText(host_target()))
            return bool(emit_intrinsic(text, name, kind, ["%a", "%b"][: INTRINSICS[name][0]], unsigned=False))
        return False

    assert all(map(has_code, FLOATS)) or all(map(has_code, INTEGERS))
