"""Small functions in LLVM IR that host programs call, each printed once in a program that needs it."""

from typing import NamedTuple

from tilewright.backends.cuda.kernel import LOST_CONTEXT, MAX_PROGRAMS, NUM_VARIANTS, TOO_MANY_PROGRAMS


class Helper(NamedTuple):
    """An internal function of a module and the external functions that it calls."""

    text: str
    declarations: tuple[str, ...]


# Strides do not matter in a dimension of one element, nor in a tensor without elements.
CONFORMS = Helper(
    """
define internal i32 @conforms(ptr %tensor, i32 %device, i32 %dtype, i64 %rank, ptr %sizes, ptr %strides) {
entry:
  %place = alloca i64
  %r0 = call i32 @aoti_torch_get_device_type(ptr %tensor, ptr %place)
  %d = load i32, ptr %place
  %c0 = icmp eq i32 %d, %device
  %r1 = call i32 @aoti_torch_get_dtype(ptr %tensor, ptr %place)
  %t = load i32, ptr %place
  %c1 = icmp eq i32 %t, %dtype
  %r2 = call i32 @aoti_torch_get_dim(ptr %tensor, ptr %place)
  %n = load i64, ptr %place
  %c2 = icmp eq i64 %n, %rank
  %r01 = or i32 %r0, %r1
  %r012 = or i32 %r01, %r2
  %worked = icmp eq i32 %r012, 0
  %c01 = and i1 %c0, %c1
  %c012 = and i1 %c01, %c2
  %good = and i1 %c012, %worked
  br i1 %good, label %shape, label %differs
shape:
  %r3 = call i32 @aoti_torch_get_sizes(ptr %tensor, ptr %place)
  %own.sizes = load ptr, ptr %place
  %r4 = call i32 @aoti_torch_get_strides(ptr %tensor, ptr %place)
  %own.strides = load ptr, ptr %place
  br label %head
head:
  %i = phi i64 [0, %shape], [%next, %stride]
  %same = phi i1 [true, %shape], [%same.next, %stride]
  %empty = phi i1 [false, %shape], [%empty.next, %stride]
  %more = icmp ult i64 %i, %rank
  br i1 %more, label %size, label %end
size:
  %p0 = getelementptr i64, ptr %sizes, i64 %i
  %a0 = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %own.sizes, i64 %i
  %b0 = load i64, ptr %p1
  %equal = icmp eq i64 %a0, %b0
  br i1 %equal, label %stride, label %differs
stride:
  %p2 = getelementptr i64, ptr %strides, i64 %i
  %a1 = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %own.strides, i64 %i
  %b1 = load i64, ptr %p3
  %stride.same = icmp eq i64 %a1, %b1
  %one = icmp eq i64 %a0, 1
  %stride.good = or i1 %stride.same, %one
  %same.next = and i1 %same, %stride.good
  %zero = icmp eq i64 %a0, 0
  %empty.next = or i1 %empty, %zero
  %next = add i64 %i, 1
  br label %head
end:
  %fits = or i1 %same, %empty
  br i1 %fits, label %conforms, label %differs
conforms:
  ret i32 0
differs:
  ret i32 1
}
""",
    (
        "declare i32 @aoti_torch_get_device_type(ptr, ptr)",
        "declare i32 @aoti_torch_get_dtype(ptr, ptr)",
        "declare i32 @aoti_torch_get_dim(ptr, ptr)",
        "declare i32 @aoti_torch_get_sizes(ptr, ptr)",
        "declare i32 @aoti_torch_get_strides(ptr, ptr)",
    ),
)
"""`i32 conforms(tensor, device type, dtype, rank, sizes, strides)`: 0 if the tensor is as stated."""

IS_ON = Helper(
    """
define internal i32 @is_on(ptr %tensor, i32 %index) {
  %place = alloca i32
  %status = call i32 @aoti_torch_get_device_index(ptr %tensor, ptr %place)
  %found = load i32, ptr %place
  %worked = icmp eq i32 %status, 0
  %same = icmp eq i32 %found, %index
  %good = and i1 %same, %worked
  %result = select i1 %good, i32 0, i32 1
  ret i32 %result
}
""",
    ("declare i32 @aoti_torch_get_device_index(ptr, ptr)",),
)
"""`i32 is_on(tensor, device index)`: 0 if the tensor is on the device of its type that has this number."""

# PyTorch makes a view of another dtype only of a tensor that begins where its storage does, so make that one first.
RETYPE = Helper(
    """
define internal i32 @retype(ptr %root, i64 %element, i64 %bytes, i32 %dtype, i64 %n, ptr %sizes, ptr %strides, ptr %r) {
  %place = alloca i64
  %start = alloca ptr
  %s0 = call i32 @aoti_torch_get_storage_offset(ptr %root, ptr %place)
  %offset = load i64, ptr %place
  %back = sub i64 0, %offset
  %s1 = call i32 @aoti_torch__reinterpret_tensor(ptr %root, i64 0, ptr null, ptr null, i64 %back, ptr %start)
  %begin = load ptr, ptr %start
  %before = mul i64 %offset, %element
  %at = add i64 %before, %bytes
  %s2 = call i32 @aoti_torch__alloc_from_pool(ptr %begin, i64 %at, i32 %dtype, i64 %n, ptr %sizes, ptr %strides, ptr %r)
  %s3 = call i32 @aoti_torch_delete_tensor_object(ptr %begin)
  ret i32 %s2
}
""",
    (
        "declare i32 @aoti_torch_get_storage_offset(ptr, ptr)",
        "declare i32 @aoti_torch__reinterpret_tensor(ptr, i64, ptr, ptr, i64, ptr)",
        "declare i32 @aoti_torch__alloc_from_pool(ptr, i64, i32, i64, ptr, ptr, ptr)",
        "declare i32 @aoti_torch_delete_tensor_object(ptr)",
    ),
)
"""`i32 retype(root, its element's bytes, bytes, dtype, rank, sizes, strides, result)`: a view of another dtype, which
begins `bytes` after the root's first element."""

RETAIN = Helper(
    """
define internal i64 @retain(ptr %handle) {
  %place = alloca i64
  %status = call i32 @aoti_torch_new_tensor_handle(ptr %handle, ptr %place)
  %new = load i64, ptr %place
  ret i64 %new
}
""",
    ("declare i32 @aoti_torch_new_tensor_handle(ptr, ptr)",),
)
"""`i64 retain(tensor)`: a new handle, as an integer."""

BOX = Helper(
    """
define internal i64 @box(i64 %value) {
  %place = alloca ptr
  %status = call i32 @torch_new_stable_ivalue(ptr %place)
  %box = load ptr, ptr %place
  store i64 %value, ptr %box
  %bits = ptrtoint ptr %box to i64
  ret i64 %bits
}
""",
    ("declare i32 @torch_new_stable_ivalue(ptr)",),
)
"""`i64 box(bits)`: the address of memory with these bits, which PyTorch deletes."""

# Before PyTorch 2.13 the caller makes the box with C++'s `new`, here `operator new(unsigned long)`.
BOX_BY_NEW = Helper(
    """
define internal i64 @box(i64 %value) {
  %box = call ptr @_Znwm(i64 8)
  store i64 %value, ptr %box
  %bits = ptrtoint ptr %box to i64
  ret i64 %bits
}
""",
    ("declare ptr @_Znwm(i64)",),
)
"""`i64 box(bits)` where PyTorch has no function for it."""

MOVE = Helper(
    """
define internal i32 @move(i32 %status, ptr %stack, ptr %results, i64 %count) {
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %done, label %copy
copy:
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %results, ptr %stack, i64 %bytes, i1 false)
  br label %done
done:
  ret i32 %status
}
""",
    ("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",),
)
"""`i32 move(status, stack, results, count)`: take results from the dispatcher's stack if the status is 0; return it."""

# A list of another length than was traced is a failure; none of its tensors is leaked.
UNLIST = Helper(
    """
define internal i32 @unlist(i32 %status, ptr %stack, ptr %results, i64 %count) {
entry:
  %size = alloca i64
  %item = alloca ptr
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %failure, label %begin
begin:
  %list = load ptr, ptr %stack
  %s0 = call i32 @torch_list_size(ptr %list, ptr %size)
  %n = load i64, ptr %size
  br label %head
head:
  %i = phi i64 [0, %begin], [%next, %after]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %end
body:
  %s1 = call i32 @torch_list_get_item(ptr %list, i64 %i, ptr %item)
  %handle = load ptr, ptr %item
  %wanted = icmp ult i64 %i, %count
  br i1 %wanted, label %keep, label %drop
keep:
  %place = getelementptr ptr, ptr %results, i64 %i
  store ptr %handle, ptr %place
  br label %after
drop:
  %s2 = call i32 @aoti_torch_delete_tensor_object(ptr %handle)
  br label %after
after:
  %next = add i64 %i, 1
  br label %head
end:
  %s3 = call i32 @torch_delete_list(ptr %list)
  %differs = icmp ne i64 %n, %count
  %result = zext i1 %differs to i32
  ret i32 %result
failure:
  ret i32 %status
}
""",
    (
        "declare i32 @torch_list_size(ptr, ptr)",
        "declare i32 @torch_list_get_item(ptr, i64, ptr)",
        "declare i32 @torch_delete_list(ptr)",
        "declare i32 @aoti_torch_delete_tensor_object(ptr)",
    ),
)
"""`i32 unlist(status, stack, results, count)`: like `move` for one list of tensors."""

# The numbers of the fields are those of `DescriptionFields` in `backends/cuda/kernel.py`.
LAUNCH = Helper(
    f"""
%variant.fields = type {{ ptr, i32, i32 }}
%kernel.fields = type {{ ptr, ptr, ptr, [{NUM_VARIANTS} x %variant.fields] }}
define internal i32 @launch(ptr %kernel, ptr %variant, i64 %programs, ptr %values, i64 %count, ptr %stream) {{
entry:
  %places = alloca ptr, i64 %count
  %none = icmp slt i64 %programs, 1
  br i1 %none, label %nothing, label %some
nothing:
  ret i32 0
some:
  %many = icmp sgt i64 %programs, {MAX_PROGRAMS}
  br i1 %many, label %too.many, label %head
too.many:
  ret i32 {TOO_MANY_PROGRAMS}
head:
  %i = phi i64 [0, %some], [%next, %body]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %go
body:
  %place = getelementptr ptr, ptr %places, i64 %i
  %value = getelementptr i64, ptr %values, i64 %i
  store ptr %value, ptr %place
  %next = add i64 %i, 1
  br label %head
go:
  %launch = load ptr, ptr %kernel
  %function = load ptr, ptr %variant
  %threads.place = getelementptr %variant.fields, ptr %variant, i64 0, i32 1
  %threads = load i32, ptr %threads.place
  %shared.place = getelementptr %variant.fields, ptr %variant, i64 0, i32 2
  %shared = load i32, ptr %shared.place
  %grid = trunc i64 %programs to i32
  br label %try
try:
  %again = phi i1 [false, %go], [true, %lost]
  %status = call i32 %launch(ptr %function, i32 %grid, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
                             ptr %stream, ptr %places, ptr null)
  %is.lost = icmp eq i32 %status, {LOST_CONTEXT}
  %first = xor i1 %again, true
  %retry = and i1 %is.lost, %first
  br i1 %retry, label %lost, label %done
lost:
  %set.place = getelementptr %kernel.fields, ptr %kernel, i64 0, i32 1
  %set = load ptr, ptr %set.place
  %context.place = getelementptr %kernel.fields, ptr %kernel, i64 0, i32 2
  %context = load ptr, ptr %context.place
  %ignored = call i32 %set(ptr %context)
  br label %try
done:
  ret i32 %status
}}
""",
    (),
)
"""`i32 launch(kernel's description, variant, programs, arguments, their number, stream)`: the driver's status, or -1
for too many programs. A thread that has not used CUDA before gets the kernel's context."""
