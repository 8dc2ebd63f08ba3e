"""Structured CPU operations to LLVM IR text: functions, loops, branches, threads and lanes.

Each kernel becomes a function `void @k0(ptr, ptr, .., i64, ..)`: its buffers' first elements, then its symbols. One
with checks returns an i32, its status (`dialects/cpu_errors.py`). Every decision was made by the passes before; what
arrives is printed as it stands. A `cpu.parallel` body becomes a function of its own, called for a chunk, so that the
buffers stay `noalias` parameters there; its threads come from the OpenMP runtime that PyTorch uses, so that both share
one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import func, memref, scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.backends.llvm.builder import FunctionText, ModuleText
from tilewright.backends.llvm.emit_memory import emit_gather, emit_load, emit_scatter, emit_store
from tilewright.backends.llvm.emit_scalar import EMITTERS, MOVES
from tilewright.backends.llvm.target import Target
from tilewright.backends.llvm.types import (
    EmitError,
    is_bf16,
    is_float,
    lanes_of,
    llvm_type,
    memory_element,
    suffix,
    vector_text,
)
from tilewright.dialects import cpu
from tilewright.dialects.cpu_errors import errors_of
from tilewright.dialects.cpu_transpose import TransposeOp
from tilewright.dialects.type_guards import is_memref, is_vector


def emit_module(functions: Iterable[func.FuncOp], target: Target) -> str:
    """Return the text of a module with these kernels. Raises `EmitError` for an operation without code."""
    module = ModuleText(target)
    for function in functions:
        _emit_function(module, function)
    return module.render()


def _emit_function(module: ModuleText, function: func.FuncOp) -> None:
    results = function.function_type.outputs.data
    if len(function.body.blocks) != 1 or len(results) != (1 if errors_of(function) else 0):
        raise EmitError(f"kernel `@{function.sym_name.data}` must have one block and no results but a status")
    fn = FunctionText(module)
    parameters = _parameters(fn, function.body.block.args)
    _emit_block(fn, function.body.block)
    kind = llvm_type(results[0]) if results else "void"
    last = function.body.block.last_op
    returned = fn.typed(last.operands[0]) if results and isinstance(last, func.ReturnOp) else "void"
    _close(fn, f"define {kind} @{function.sym_name.data}({parameters}) #0", returned)


def _parameters(fn: FunctionText, values: Sequence[SSAValue]) -> str:
    """Name `values` as the parameters of a function and return their declaration."""
    parts: list[str] = []
    for i, value in enumerate(values):
        fn.names[value] = f"%a{i}"
        qualifier = " noalias" if is_memref(value.type) else ""
        parts.append(f"{llvm_type(value.type)}{qualifier} %a{i}")
    return ", ".join(parts)


def _close(fn: FunctionText, head: str, returned: str = "void") -> None:
    fn.module.functions.append("\n".join([f"{head} {{", "entry:", *fn.lines, f"  ret {returned}", "}"]))


def _emit_block(fn: FunctionText, block: Block) -> None:
    for op in block.ops:
        _emit_op(fn, op)


def _emit_op(fn: FunctionText, op: Operation) -> None:
    emitter = EMITTERS.get(type(op))
    if emitter is not None:
        if type(op) not in MOVES and any(is_bf16(v.type) for v in (*op.operands, *op.results)):
            raise EmitError(f"`{op.name}` computes with bf16; it is to be cast to f32, and the result back")
        fn.names[op.results[0]] = emitter(fn, op)
        return
    match op:
        case cpu.LoadOp():
            fn.names[op.result] = emit_load(fn, op)
        case cpu.GatherOp():
            fn.names[op.result] = emit_gather(fn, op)
        case cpu.StoreOp():
            emit_store(fn, op)
        case cpu.ScatterOp():
            emit_scatter(fn, op)
        case cpu.StepOp():
            fn.names[op.result] = _lane_numbers("i64", lanes_of(op.result.type))
        case cpu.TailMaskOp():
            fn.names[op.result] = _emit_tail_mask(fn, op)
        case cpu.ReduceOp():
            fn.names[op.result] = _emit_reduce(fn, op)
        case cpu.ExtractOp():
            fn.names[op.result] = _emit_extract(fn, op)
        case TransposeOp():
            _emit_transpose(fn, op)
        case memref.AllocaOp():
            fn.names[op.memref] = _emit_alloca(fn, op)
        case cpu.ParallelOp():
            _emit_parallel(fn, op)
        case scf.ForOp():
            _emit_for(fn, op)
        case scf.IfOp():
            _emit_if(fn, op)
        case func.ReturnOp() | scf.YieldOp():
            pass
        case _:
            raise EmitError(f"there is no code for `{op.name}`; `convert-loop-to-cpu` should have replaced it")


def _emit_extract(fn: FunctionText, op: cpu.ExtractOp) -> str:
    lane = op.lane.value.data
    if not is_vector(op.result.type):
        return fn.op(f"extractelement {fn.typed(op.input)}, i64 {lane}")
    count = lanes_of(op.result.type)
    source = llvm_type(op.input.type)
    return fn.op(f"shufflevector {fn.typed(op.input)}, {source} poison, <{count} x i32> <{_lanes(lane, count)}>")


def _emit_transpose(fn: FunctionText, op: TransposeOp) -> None:
    """Swap the squares off the diagonal, first those of half the size, then those within each quarter, and so on."""
    rows = [fn.name(v) for v in op.rows]
    count, kind = len(rows), llvm_type(op.rows[0].type)
    half = count // 2
    while half:
        for i in (i for i in range(count) if not i & half):
            pair = f"shufflevector {kind} {rows[i]}, {kind} {rows[i + half]}"
            lower = [lane if not lane & half else count + lane - half for lane in range(count)]
            upper = [lane + half if not lane & half else count + lane for lane in range(count)]
            rows[i], rows[i + half] = (
                fn.op(f"{pair}, <{count} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>")
                for lanes in (lower, upper)
            )
        half //= 2
    fn.names.update(zip(op.columns, rows, strict=True))


def _emit_alloca(fn: FunctionText, op: memref.AllocaOp) -> str:
    """Reserve a buffer of a fixed size on the stack."""
    kind = op.memref.type
    if not is_memref(kind) or not kind.has_static_shape():
        raise EmitError(f"`memref.alloca` needs a fixed size, found {kind}")
    element, size = memory_element(kind.element_type)
    alignment = size if op.alignment is None else op.alignment.value.data
    return fn.op(f"alloca [{kind.element_count()} x {element}], align {alignment}")


def _lane_numbers(element: str, lanes: int) -> str:
    return f"<{', '.join(f'{element} {lane}' for lane in range(lanes))}>"


def _emit_tail_mask(fn: FunctionText, op: cpu.TailMaskOp) -> str:
    """Compare lane numbers with the iterations left, in 32 bits: half the registers of a comparison of indices."""
    lanes = lanes_of(op.result.type)
    left = fn.op(f"sub i64 {fn.name(op.end)}, {fn.name(op.position)}")
    least = fn.call("llvm.smin.i64", "i64", [("i64", left), ("i64", str(lanes))])
    count = fn.op(f"trunc i64 {least} to i32")
    vector = vector_text("i32", lanes)
    first = fn.op(f"insertelement {vector} poison, i32 {count}, i64 0")
    spread = fn.op(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")
    return fn.op(f"icmp slt {vector} {_lane_numbers('i32', lanes)}, {spread}")


_COMBINE_FLOAT = {"sum": "fadd", "prod": "fmul"}
_COMBINE_INT = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}
_COMBINE_INTRINSIC = {
    "max": ("maximum", "smax"),
    "min": ("minimum", "smin"),
    "umax": ("maximum", "umax"),
    "umin": ("minimum", "umin"),
}


def _emit_reduce(fn: FunctionText, op: cpu.ReduceOp) -> str:
    """Combine the upper half of the lanes with the lower until one is left."""
    element, lanes = op.result.type, lanes_of(op.input.type)
    if is_bf16(element):
        raise EmitError(f"`cpu.reduce` computes with {op.input.type}; it is to be cast to f32")
    if lanes & (lanes - 1):
        raise EmitError(f"`cpu.reduce` needs a power of two of lanes, found {op.input.type}")
    text, value = llvm_type(element), fn.name(op.input)
    if text == "i1" and op.combiner.data in ("any", "all", "max", "min"):
        # One comparison of all bits; LLVM does not find that in a tree of shuffles.
        bits = fn.op(f"bitcast {fn.typed(op.input)} to i{lanes}")
        test = f"ne i{lanes} {bits}, 0" if op.combiner.data in ("any", "max") else f"eq i{lanes} {bits}, -1"
        return fn.op(f"icmp {test}")
    while lanes > 1:
        half = lanes // 2
        vector = vector_text(text, lanes)
        parts = [
            fn.op(f"shufflevector {vector} {value}, {vector} poison, <{half} x i32> <{_lanes(start, half)}>")
            for start in (0, half)
        ]
        value = _combine(fn, op.combiner.data, element, half, *parts)
        lanes = half
        if half == 1:
            value = fn.op(f"extractelement <1 x {text}> {value}, i64 0")
    return value


def _lanes(start: int, count: int) -> str:
    return ", ".join(f"i32 {lane}" for lane in range(start, start + count))


def _combine(fn: FunctionText, name: str, element: Attribute, lanes: int, lhs: str, rhs: str) -> str:
    on_float = is_float(element)
    kind = f"<{lanes} x {llvm_type(element)}>"
    if name in _COMBINE_INTRINSIC:
        intrinsic = _COMBINE_INTRINSIC[name][0 if on_float else 1]
        return fn.call(f"llvm.{intrinsic}.v{lanes}{suffix(element)}", kind, [(kind, lhs), (kind, rhs)])
    instruction = (_COMBINE_FLOAT if on_float else _COMBINE_INT).get(name)
    if instruction is None:
        raise EmitError(f"there is no code to combine lanes by `{name}` of {element}")
    return fn.op(f"{instruction} {kind} {lhs}, {rhs}")


def _emit_for(fn: FunctionText, op: scf.ForOp) -> None:
    head, body, after = fn.fresh("for"), fn.fresh("body"), fn.fresh("end")
    before = fn.block
    kind = llvm_type(op.lb.type)
    fn.line(f"br label %{head}")
    fn.label(head)
    index, *accumulators = op.body.block.args
    fn.names[index] = f"%{fn.fresh()}"
    # The values of the next iteration are named before the body is written, since the phis stand above it.
    next_index = f"%{fn.fresh('n')}"
    place = len(fn.lines)
    for argument in accumulators:
        fn.names[argument] = f"%{fn.fresh()}"
    inside = fn.op(f"icmp slt {kind} {fn.name(index)}, {fn.name(op.ub)}")
    fn.line(f"br i1 {inside}, label %{body}, label %{after}")
    fn.label(body)
    with fn.scope():
        _emit_block(fn, op.body.block)
        last = op.body.block.last_op
        assert isinstance(last, scf.YieldOp)
        yielded = [fn.name(v) for v in last.operands]
    fn.line(f"{next_index} = add nsw {kind} {fn.name(index)}, {fn.name(op.step)}")
    latch = fn.block
    fn.line(f"br label %{head}, !llvm.loop {_loop_metadata(fn, op)}")
    phis = [f"  {fn.name(index)} = phi {kind} [ {fn.name(op.lb)}, %{before} ], [ {next_index}, %{latch} ]"]
    for argument, start, value in zip(accumulators, op.iter_args, yielded, strict=True):
        text = llvm_type(argument.type)
        phis.append(f"  {fn.name(argument)} = phi {text} [ {fn.name(start)}, %{before} ], [ {value}, %{latch} ]")
    fn.lines[place:place] = phis
    fn.label(after)
    for result, argument in zip(op.results, accumulators, strict=True):
        fn.names[result] = fn.name(argument)


def _loop_metadata(fn: FunctionText, op: scf.ForOp) -> str:
    """Mark a loop as finite, and as done with vectors where it holds some."""
    parts = ["%"]
    parts.append(fn.module.add_metadata('!{!"llvm.loop.mustprogress"}'))
    if any(lanes_of(r.type) > 1 for inner in op.body.block.ops for r in inner.results):
        parts.append(fn.module.add_metadata('!{!"llvm.loop.vectorize.enable", i1 false}'))
    return fn.module.add_metadata(f"distinct !{{{', '.join(parts)}}}")


def _emit_if(fn: FunctionText, op: scf.IfOp) -> None:
    taken, other, after = fn.fresh("then"), fn.fresh("else"), fn.fresh("end")
    fn.line(f"br i1 {fn.name(op.cond)}, label %{taken}, label %{other}")
    values: list[list[tuple[str, str]]] = [[] for _ in op.results]
    for label, region in ((taken, op.true_region), (other, op.false_region)):
        fn.label(label)
        with fn.scope():
            for block in region.blocks:
                _emit_block(fn, block)
                if isinstance(block.last_op, scf.YieldOp):
                    for slot, value in zip(values, block.last_op.operands, strict=True):
                        slot.append((fn.name(value), fn.block))
        fn.line(f"br label %{after}")
    fn.label(after)
    for result, incoming in zip(op.results, values, strict=True):
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)
        fn.names[result] = fn.op(f"phi {llvm_type(result.type)} {pairs}")


def _captures(op: cpu.ParallelOp) -> list[SSAValue]:
    """Return the values that the body uses and does not define, in the order of first use."""
    inside: set[SSAValue] = set()
    used: dict[SSAValue, None] = {}
    for inner in op.walk():
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.args)
        inside.update(inner.results)
    for inner in op.walk():
        if inner is not op:
            used.update(dict.fromkeys(o for o in inner.operands if o not in inside))
    return list(used)


def _emit_parallel(fn: FunctionText, op: cpu.ParallelOp) -> None:
    """Write the body as a function of a chunk; call it here or, with more than one chunk, from the thread pool."""
    captures = [v for v in _captures(op) if fn.name(v).startswith("%")]
    constants = {v: fn.name(v) for v in _captures(op) if not fn.name(v).startswith("%")}
    begin, end = op.block.args
    name = f"chunk.{len(fn.module.functions)}"
    body = FunctionText(fn.module)
    body.names.update(constants)
    parameters = _parameters(body, [*captures, begin, end])
    _emit_block(body, op.block)
    _close(body, f"define internal void @{name}({parameters}) #0")
    arguments = ", ".join(fn.typed(v) for v in captures)
    arguments += ", " if captures else ""
    extent, grain = fn.name(op.extent), op.grain.value.data
    if not fn.target.has_openmp:
        fn.line(f"call void @{name}({arguments}i64 0, i64 {extent})")
        return
    serial, parallel, after = fn.fresh("serial"), fn.fresh("parallel"), fn.fresh("end")
    fits = fn.op(f"icmp sle i64 {extent}, {grain}")
    fn.line(f"br i1 {fits}, label %{serial}, label %{parallel}")
    fn.label(serial)
    fn.line(f"call void @{name}({arguments}i64 0, i64 {extent})")
    fn.line(f"br label %{after}")
    fn.label(parallel)
    _call_threads(fn, name, captures, extent, grain)
    fn.line(f"br label %{after}")
    fn.label(after)


def _call_threads(fn: FunctionText, body: str, captures: Sequence[SSAValue], extent: str, grain: int) -> None:
    """Pass the captured values in a structure to one thread per chunk, at most as many as PyTorch may use."""
    kinds = [*(llvm_type(v.type) for v in captures), "i64"]
    structure = f"{{ {', '.join(kinds)} }}"
    context = fn.op(f"alloca {structure}, align 64")
    for i, value in enumerate([*(fn.name(v) for v in captures), extent]):
        field = fn.op(f"getelementptr inbounds {structure}, ptr {context}, i32 0, i32 {i}")
        fn.line(f"store {kinds[i]} {value}, ptr {field}")
    available = fn.call("omp_get_max_threads", "i32", [])
    padded = fn.op(f"add i64 {extent}, {grain - 1}")
    chunks = fn.op(f"udiv i64 {padded}, {grain}")
    wide = fn.op(f"zext i32 {available} to i64")
    threads = fn.op(f"trunc i64 {fn.call('llvm.umin.i64', 'i64', [('i64', chunks), ('i64', wide)])} to i32")
    fn.module.declare("declare void @GOMP_parallel(ptr, ptr, i32, i32)")
    fn.line(f"call void @GOMP_parallel(ptr @{body}.thread, ptr {context}, i32 {threads}, i32 0)")
    _emit_thread(fn.module, body, kinds, structure, grain)


def _emit_thread(module: ModuleText, body: str, kinds: Sequence[str], structure: str, grain: int) -> None:
    """Write the function that each thread runs: it takes its share of the range and calls the body for it."""
    fn = FunctionText(module)
    values: list[str] = []
    for i, kind in enumerate(kinds):
        field = fn.op(f"getelementptr inbounds {structure}, ptr %context, i32 0, i32 {i}")
        values.append(fn.op(f"load {kind}, ptr {field}"))
    extent = values[-1]
    thread = fn.op(f"zext i32 {fn.call('omp_get_thread_num', 'i32', [])} to i64")
    threads = fn.op(f"zext i32 {fn.call('omp_get_num_threads', 'i32', [])} to i64")
    others = fn.op(f"sub i64 {threads}, 1")
    padded = fn.op(f"add i64 {extent}, {others}")
    share = fn.op(f"udiv i64 {padded}, {threads}")
    least = fn.call("llvm.umax.i64", "i64", [("i64", share), ("i64", str(grain))])
    begin = fn.op(f"mul i64 {thread}, {least}")
    limit = fn.op(f"add i64 {begin}, {least}")
    end = fn.call("llvm.smin.i64", "i64", [("i64", limit), ("i64", extent)])
    some, done = fn.fresh("some"), fn.fresh("done")
    inside = fn.op(f"icmp slt i64 {begin}, {end}")
    fn.line(f"br i1 {inside}, label %{some}, label %{done}")
    fn.label(some)
    arguments = [f"{kind} {value}" for kind, value in zip(kinds[:-1], values[:-1], strict=True)]
    fn.line(f"call void @{body}({', '.join([*arguments, f'i64 {begin}', f'i64 {end}'])})")
    fn.line(f"br label %{done}")
    fn.label(done)
    _close(fn, f"define internal void @{body}.thread(ptr %context) #0")
