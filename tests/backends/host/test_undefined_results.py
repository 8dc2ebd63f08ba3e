"""Results of calls that are no tensors although they were traced as some: attention leaves out what nobody needs."""

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tilewright.backends.host import abi, routes, runtime
from tilewright.backends.host.runtime import Program
from tilewright.backends.host.shims import find_shim

Load = Callable[..., Program]

ATTENTION = "aten._scaled_dot_product_cudnn_attention.default"
OWN = "tilewright_test.attention.default"
PARAMETERS = "Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp"
IMAGE = "memref<1x2x3x8xbf16, #sym.layout<[1, 2, 3, 8], [48, 24, 8, 1]>>"
PERMUTED = "memref<1x2x3x8xbf16, #sym.layout<[1, 2, 3, 8], [48, 1, 16, 2]>>"
SUMS = "memref<1x2x3x1xf32, #sym.layout<[1, 2, 3, 1], [6, 3, 1, 1]>>"
SEED = "memref<i64, #sym.layout<[], []>>"
FREE = f"host.free %sums : {SUMS}"
READ = f'%used = host.call "aten.neg.default"(self = %sums) : ({SUMS}) -> {SUMS}'


def attention(operator: str, then: str = FREE, out: str = IMAGE) -> str:
    return f"""
func.func @forward(%q : {IMAGE}) -> (i64, {out}, i64) {{
  %out, %sums, %cq, %ck, %n, %m, %seed, %offset, %mask = host.call "{operator}"(query = %q, key = %q, value = %q,
      attn_bias = none, compute_log_sumexp = false)
    : ({IMAGE}, {IMAGE}, {IMAGE}) -> ({out}, {SUMS}, none, none, i64, i64, {SEED}, {SEED}, none)
  {then}
  func.return %n, %out, %m : i64, {out}, i64
}}"""


@pytest.fixture(params=["function", "callback", "python"])
def load_attention(
    request: pytest.FixtureRequest,
    load: Load,
    define_operator: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Load:
    """Loads a call by a C function, one that native code makes in Python, and one of a program in Python."""
    if request.param == "function":
        _install_function(monkeypatch)

    def leave_out(query: Tensor, *_: object) -> tuple[Tensor | int | None, ...]:
        return query.clone(), None, None, None, 512, 513, None, None, None

    returns = "(Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor)"
    define_operator(f"attention({PARAMETERS}) -> {returns}", leave_out)

    def load_one(then: str = FREE, out: str = IMAGE) -> Program:
        text = attention(ATTENTION if request.param == "function" else OWN, then, out)
        return load(text, mode="python" if request.param == "python" else "native")

    return load_one


def _install_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention be the C function for CUDA, and that one here."""
    shim = find_shim(ATTENTION, "cuda")
    assert shim is not None

    def call(query: int, *rest: int) -> int:
        out, *others = rest[-9:]
        for number, place in enumerate(others, 1):
            if number in (4, 5):
                ctypes.c_int64.from_address(place).value = 508 + number
            else:
                abi.torch_function("aoti_torch_new_uninitialized_tensor")(ctypes.c_void_p(place))
        return abi.torch_function("aoti_torch_clone")(ctypes.c_void_p(query), ctypes.c_void_p(out))

    pointer, number, flag = ctypes.c_void_p, ctypes.c_double, ctypes.c_int32
    function = ctypes.CFUNCTYPE(flag, *(pointer,) * 4, flag, number, flag, flag, *(pointer,) * 10)(call)
    symbol, address = shim.symbol, ctypes.cast(function, pointer).value

    def resolve(name: str) -> int | None:
        return address if name == symbol and function else abi.torch_symbol(name)

    monkeypatch.setattr(routes, "find_shim", lambda *_: shim)  # type: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(routes, "torch_symbol", resolve)
    monkeypatch.setattr(runtime, "torch_symbol", resolve)


@pytest.mark.parametrize("then", [FREE, ""])
@pytest.mark.parametrize("out", [IMAGE, PERMUTED])
def test_those_that_nothing_reads_are_dropped(load_attention: Load, then: str, out: str) -> None:
    program = load_attention(then=then, out=out)
    q = torch.randn(1, 2, 3, 8, dtype=torch.bfloat16)
    for _ in range(3):
        n, y, m = program([q])
        assert (n, m) == (512, 513)
        assert isinstance(y, Tensor)
        assert torch.equal(y, q)
        assert y.stride() == ((48, 24, 8, 1) if out == IMAGE else (48, 1, 16, 2))


def test_one_that_is_read_is_an_error(load_attention: Load) -> None:
    """The integers beside it are no handles, whatever follows."""
    program = load_attention(then=READ)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"attention\.default` was traced to give float32 .*, gave NoneType"):
            program([torch.randn(1, 2, 3, 8, dtype=torch.bfloat16)])
