"""Kernels that have, all together, each operation of the `tt` dialect that Triton takes, and those around it."""

# ruff: noqa: E501 (lines of IR)

PREFIX = """
  %i = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32>
  %pid = tt.get_program_id x : i32
  %grid = tt.get_num_programs x : i32
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
  %ys = tt.splat %y : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
  %px = tt.addptr %xs, %i : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
  %py = tt.addptr %ys, %i : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
  %n32 = arith.trunci %n : i64 to i32
  %ns = tt.splat %n32 : i32 -> tensor<256xi32>
  %m = arith.cmpi slt, %i, %ns : tensor<256xi32>
  %infinite = arith.constant dense<0xFF800000> : tensor<256xf32>
  %v = tt.load %px, %m, %infinite : tensor<256x!tt.ptr<f32>>
"""

BODIES = {
    "shapes": """
  %a = tt.reshape %v : tensor<256xf32> -> tensor<16x16xf32>
  %b = tt.trans %a {order = array<i32: 1, 0>} : tensor<16x16xf32> -> tensor<16x16xf32>
  %c = tt.reshape %b allow_reorder : tensor<16x16xf32> -> tensor<256xf32>
  %d = tt.join %c, %v : tensor<256xf32> -> tensor<256x2xf32>
  %e, %f = tt.split %d : tensor<256x2xf32> -> tensor<256xf32>
  %g = arith.addf %e, %f : tensor<256xf32>
  %h = tt.gather %g[%i] {axis = 0 : i32} : (tensor<256xf32>, tensor<256xi32>) -> tensor<256xf32>
  %k = tt.histogram %i : tensor<256xi32> -> tensor<256xi32>
  %l = arith.sitofp %k : tensor<256xi32> to tensor<256xf32>
  %o = arith.addf %h, %l : tensor<256xf32>
  %q = tt.expand_dims %o {axis = 1 : i32} : tensor<256xf32> -> tensor<256x1xf32>
  %r = tt.broadcast %q : tensor<256x1xf32> -> tensor<256x2xf32>
  %s, %t = tt.split %r : tensor<256x2xf32> -> tensor<256xf32>
  tt.store %py, %s, %m : tensor<256x!tt.ptr<f32>>
""",
    "memory": """
  %a = tt.load %px {isVolatile = true} : tensor<256x!tt.ptr<f32>>
  %b = tt.load %px, %m {cachePolicy = #tt.cache_policy<cache_modifier = none, eviction_policy = evict_last>} : tensor<256x!tt.ptr<f32>>
  %c = tt.load %px, %m {cachePolicy = #tt.cache_policy<cache_modifier = cg, eviction_policy = evict_normal>} : tensor<256x!tt.ptr<f32>>
  %d = arith.addf %a, %b : tensor<256xf32>
  %e = arith.addf %d, %c : tensor<256xf32>
  %f = tt.atomic_rmw fadd, relaxed, gpu, %py, %e, %m : (tensor<256x!tt.ptr<f32>>, tensor<256xf32>, tensor<256xi1>) -> tensor<256xf32>
  %pi = tt.bitcast %py : tensor<256x!tt.ptr<f32>> -> tensor<256x!tt.ptr<i32>>
  %g = tt.atomic_rmw max, acq_rel, gpu, %pi, %i, %m : (tensor<256x!tt.ptr<i32>>, tensor<256xi32>, tensor<256xi1>) -> tensor<256xi32>
  %h = tt.atomic_cas relaxed, gpu, %pi, %g, %i : (tensor<256x!tt.ptr<i32>>, tensor<256xi32>, tensor<256xi32>) -> tensor<256xi32>
  %k = tt.ptr_to_int %py : tensor<256x!tt.ptr<f32>> -> tensor<256xi64>
  %l = tt.int_to_ptr %k : tensor<256xi64> -> tensor<256x!tt.ptr<f32>>
  tt.store %l, %f, %m {cachePolicy = #tt.cache_policy<cache_modifier = none, eviction_policy = evict_first>} : tensor<256x!tt.ptr<f32>>
  %s = tt.load %x : !tt.ptr<f32>
  tt.store %y, %s {cachePolicy = #tt.cache_policy<cache_modifier = wt, eviction_policy = evict_normal>} : !tt.ptr<f32>
  %q = tt.addptr %y, %n : !tt.ptr<f32>, i64
  %true = arith.constant true
  %u = tt.atomic_rmw fadd, relaxed, gpu, %q, %s, %true : (!tt.ptr<f32>, f32, i1) -> f32
  tt.assert %m, "index out of range" : tensor<256xi1>
""",
    "combine": """
  %a = tt.reshape %v : tensor<256xf32> -> tensor<16x16xf32>
  %b = "tt.reduce"(%a) <{axis = 1 : i32}> ({
  ^bb0(%p : f32, %q : f32):
    %r = arith.maximumf %p, %q : f32
    tt.reduce.return %r : f32
  }) : (tensor<16x16xf32>) -> tensor<16xf32>
  %c, %d = "tt.reduce"(%v, %i) <{axis = 0 : i32}> ({
  ^bb0(%p : f32, %pi : i32, %q : f32, %qi : i32):
    %g = arith.cmpf ogt, %p, %q : f32
    %e = arith.cmpf oeq, %p, %q : f32
    %l = arith.cmpi slt, %pi, %qi : i32
    %t = arith.andi %e, %l : i1
    %w = arith.ori %g, %t : i1
    %r = arith.select %w, %p, %q : f32
    %ri = arith.select %w, %pi, %qi : i32
    tt.reduce.return %r, %ri : f32, i32
  }) : (tensor<256xf32>, tensor<256xi32>) -> (f32, i32)
  %f, %g = "tt.scan"(%v, %v) <{axis = 0 : i32, reverse = true}> ({
  ^bb0(%p : f32, %ps : f32, %q : f32, %qs : f32):
    %r = arith.addf %p, %q : f32
    %rs = arith.mulf %ps, %qs : f32
    tt.scan.return %r, %rs : f32, f32
  }) : (tensor<256xf32>, tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>)
  %h = arith.addf %f, %g : tensor<256xf32>
  tt.store %py, %h, %m : tensor<256x!tt.ptr<f32>>
  tt.store %y, %c : !tt.ptr<f32>
  %sum = "tt.reduce"(%b) <{axis = 0 : i32}> ({
  ^bb0(%p : f32, %q : f32):
    %r = arith.addf %p, %q : f32
    tt.reduce.return %r : f32
  }) : (tensor<16xf32>) -> f32
  %at = tt.addptr %y, %d : !tt.ptr<f32>, i32
  tt.store %at, %sum : !tt.ptr<f32>
""",
    "numbers": """
  %a = tt.reshape %v : tensor<256xf32> -> tensor<16x16xf32>
  %zero = arith.constant dense<0.0> : tensor<16x16xf32>
  %b = tt.dot %a, %a, %zero, inputPrecision = tf32 : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>
  %c = tt.dot %a, %b, %b : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>
  %d = tt.reshape %c : tensor<16x16xf32> -> tensor<256xf32>
  %e = tt.fp_to_fp %d, rounding = rtne : tensor<256xf32> -> tensor<256xf8E5M2>
  %f = tt.fp_to_fp %e : tensor<256xf8E5M2> -> tensor<256xf32>
  %g = tt.clampf %f, %v, %d, propagateNan = all : tensor<256xf32>
  %h = tt.mulhiui %i, %i : tensor<256xi32>
  %j = arith.uitofp %h : tensor<256xi32> to tensor<256xf32>
  %k = tt.precise_divf %g, %j : tensor<256xf32>
  %l = tt.precise_sqrt %k : tensor<256xf32>
  %o = tt.bitcast %l : tensor<256xf32> -> tensor<256xi32>
  %q = arith.xori %o, %i : tensor<256xi32>
  %r = tt.bitcast %q : tensor<256xi32> -> tensor<256xf32>
  %s = tt.extern_elementwise %r {libname = "libdevice", libpath = "", symbol = "__nv_expf", pure = true} : (tensor<256xf32>) -> tensor<256xf32>
  %t = tt.extern_elementwise %s, %v {libname = "libdevice", libpath = "", symbol = "__nv_powf", pure = true} : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  %u = math.exp %t : tensor<256xf32>
  %w = math.rsqrt %u : tensor<256xf32>
  %y1 = math.fma %u, %w, %t : tensor<256xf32>
  tt.store %py, %y1, %m : tensor<256x!tt.ptr<f32>>
""",
    "casts": """
  %a = arith.truncf %v : tensor<256xf32> to tensor<256xbf16>
  %b = arith.extf %a : tensor<256xbf16> to tensor<256xf32>
  %c = arith.fptosi %b : tensor<256xf32> to tensor<256xi64>
  %d = arith.fptoui %b : tensor<256xf32> to tensor<256xi8>
  %e = arith.extui %d : tensor<256xi8> to tensor<256xi64>
  %f = arith.extsi %i : tensor<256xi32> to tensor<256xi64>
  %g = arith.addi %c, %e : tensor<256xi64>
  %h = arith.muli %g, %f : tensor<256xi64>
  %j = arith.trunci %h : tensor<256xi64> to tensor<256xi1>
  %k = arith.select %j, %b, %v : tensor<256xi1>, tensor<256xf32>
  %l = arith.extui %j : tensor<256xi1> to tensor<256xi8>
  %o = arith.uitofp %l : tensor<256xi8> to tensor<256xf32>
  %p = arith.cmpf une, %k, %o : tensor<256xf32>
  %q = arith.select %p, %k, %o : tensor<256xi1>, tensor<256xf32>
  tt.store %py, %q, %m : tensor<256x!tt.ptr<f32>>
""",
    "control": """
  %zero = arith.constant 0 : i32
  %step = arith.constant 256 : i32
  %none = arith.constant dense<0.0> : tensor<256xf32>
  %acc, %last = scf.for %k = %zero to %n32 step %step iter_args(%s = %none, %l = %zero) -> (tensor<256xf32>, i32) : i32 {
    %p = tt.addptr %x, %k : !tt.ptr<f32>, i32
    %w = tt.splat %p : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
    %q = tt.addptr %w, %i : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
    %u = tt.load %q : tensor<256x!tt.ptr<f32>>
    %t = arith.addf %s, %u : tensor<256xf32>
    scf.yield %t, %k : tensor<256xf32>, i32
  }
  %start = arith.constant 1 : i64
  scf.for %k = %start to %n step %start : i64 {
    %p = tt.addptr %y, %k : !tt.ptr<f32>, i64
    %v0 = arith.constant 0xFF800000 : f32
    tt.store %p, %v0 : !tt.ptr<f32>
  }
  %positive = arith.cmpi sgt, %last, %zero : i32
  %r = scf.if %positive -> (tensor<256xf32>) {
    %d = arith.addf %acc, %v : tensor<256xf32>
    scf.yield %d : tensor<256xf32>
  } else {
    scf.yield %acc : tensor<256xf32>
  }
  scf.if %positive {
    tt.store %py, %r, %m : tensor<256x!tt.ptr<f32>>
  }
""",
}


def kernel_text(name: str, attributes: str = "") -> str:
    """Return the text of the kernel `name` on two buffers and a size."""
    return (
        f"tt.func public @{name}(%x : !tt.ptr<f32> {{tt.divisibility = 16 : i32}}, "
        f"%y : !tt.ptr<f32> {{tt.divisibility = 16 : i32}}, %n : i64) attributes {{"
        f'grid = #sym.expr<n0>, symbols = ["n0"], num_warps = 4 : i32, num_stages = 2 : i32{attributes}}} {{'
        f"{PREFIX}{BODIES[name]}  tt.return\n}}\n"
    )
