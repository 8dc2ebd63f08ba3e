"""The hand-written signatures of `shims.py` against the schemas of the operators and against torch's own C header."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from tilewright.backends.host import abi
from tilewright.backends.host.shims import Shim, find_shim, operators
from tilewright.dialects import aten_schema
from tilewright.dialects.aten_schema import Argument, Element

C_TYPES = {
    Element.TENSOR: "AtenTensorHandle",
    Element.INT: "int64_t",
    Element.FLOAT: "double",
    Element.SCALAR: "double",
    Element.BOOL: "int32_t",
    Element.SCALAR_TYPE: "int32_t",
}


@cache
def header() -> str:
    folder = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch"
    return (folder / "generated/c_shim_cpu.h").read_text() + (folder / "c/shim.h").read_text()


def c_parameters(shim: Shim) -> list[str]:
    """The C types that the marshalling code assumes."""

    def spell(parameter: Argument) -> list[str]:
        kind = parameter.kind
        base = C_TYPES[kind.element]
        if not kind.is_list:
            return [base + "*" * kind.optional]
        return [f"const {base}{'*' * (1 + kind.optional_elements + kind.optional)}", "int64_t"]

    returns = () if any(r.alias for r in shim.returns) else shim.returns
    return [t for p in shim.parameters for t in spell(p)] + [f"{C_TYPES[r.kind.element]}*" for r in returns]


@pytest.mark.parametrize("operator", operators())
def test_signature(operator: str) -> None:
    shim, schema = find_shim(operator), aten_schema.lookup(operator)
    assert shim is not None
    assert schema is not None
    assert abi.torch_symbol(shim.symbol) is not None
    first, *others = shim.parameters
    own = others if shim.has_out else [*others, first] if first.name == "out" else shim.parameters
    assert [p.name for p in own] == [a.name for a in schema.arguments]
    for parameter, argument in zip(own, schema.arguments, strict=True):
        spelled = re.sub(r"\[\d+\]", "[]", str(argument.kind)).replace("SymInt", "int")
        assert str(parameter.kind) == spelled, parameter.name
    match = re.search(rf"\b{shim.symbol}\(([^)]*)\)", header())
    assert match is not None
    assert [" ".join(p.split()[:-1]) for p in match[1].split(",")] == c_parameters(shim)


@pytest.mark.parametrize("operator", operators("cuda"))
def test_functions_for_cuda(operator: str) -> None:
    shim, schema = find_shim(operator, "cuda"), aten_schema.lookup(operator)
    assert shim is not None
    assert schema is not None
    folder = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch"
    match = re.search(rf"\b{shim.symbol}\(([^)]*)\)", (folder / "generated/c_shim_cuda.h").read_text())
    if match is not None:
        assert [" ".join(p.split()[:-1]) for p in match[1].split(",")] == c_parameters(shim)
        assert {p.name for p in shim.parameters} - {"out"} <= {a.name for a in schema.arguments}
    else:
        assert "for_cpu" in shim.symbol or shim.on_any_device
