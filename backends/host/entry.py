"""The one native function through which Python calls every host program.

It is a Python built-in made at run time: `call(inputs)` takes a list of tensors and integers, empties the list, runs
the program with the GIL released, and returns the list of results, or None if the program failed. Emptying the list
lets a program give up an input after its last use, as AOTAutograd's boxed convention wants. A description of the
program (`Entry`) tells it what to expect. Written as LLVM IR, since no C compiler is to be had.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from tilewright.backends.host.abi import capabilities, native_target, python_symbol, torch_function, torch_symbol
from tilewright.backends.host.frame import Frame
from tilewright.backends.host.torch_internals import handle_capsules_to_tensors, tensor_to_handle_capsule
from tilewright.backends.llvm.jit import CompileOptions, Library, compile_library


class _Description(ctypes.Structure):
    """What the native function reads: fields of 64 bits, which its text numbers."""

    _fields_ = [
        ("run", ctypes.c_void_p),
        ("callback", ctypes.c_void_p),
        ("to_handle", ctypes.py_object),
        ("from_handles", ctypes.py_object),
        ("num_inputs", ctypes.c_int64),
        ("input_is_tensor", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("first_result", ctypes.c_int64),
        ("first_constant", ctypes.c_int64),
        ("num_slots", ctypes.c_int64),
        ("num_scalars", ctypes.c_int64),
        ("num_results", ctypes.c_int64),
        ("result_scalars", ctypes.c_void_p),
    ]


class _MethodDef(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_ONE_ARGUMENT = 8  # METH_O
_RESULT_IS_TENSOR = -1

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_function_new = ctypes.pythonapi.PyCFunction_NewEx
_function_new.restype = ctypes.py_object
_function_new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]


def new_handle(tensor: Tensor) -> int:
    """Return a new handle to a tensor; whoever gets it gives it up."""
    handle = _capsule_pointer(tensor_to_handle_capsule(tensor), None)
    assert isinstance(handle, int)
    return handle


def take_tensor(handle: int) -> Tensor:
    """Return the tensor of a handle and give up the handle."""
    return handle_capsules_to_tensors([_capsule_new(handle, None, None)])[0]


def delete_handle(handle: int) -> None:
    """Give up a handle."""
    torch_function("aoti_torch_delete_tensor_object")(ctypes.c_void_p(handle))


class Entry:
    """A program that Python can call: `entry.call(inputs)`.

    `run` and `callback` are addresses of code, and `constants` handles, that the caller keeps alive. `input_is_tensor`
    tells tensors from integers; `result_scalars` has for each result the scalar that it is, or None for a tensor.
    """

    def __init__(
        self,
        run: int,
        callback: int,
        frame: Frame,
        input_is_tensor: Sequence[bool],
        result_scalars: Sequence[int | None],
        constants: Sequence[int],
    ):
        self._library = _library()
        self._inputs = (ctypes.c_uint8 * len(input_is_tensor))(*input_is_tensor)
        self._constants = (ctypes.c_void_p * len(constants))(*constants)
        self._results = (ctypes.c_int64 * len(result_scalars))(
            *(_RESULT_IS_TENSOR if r is None else r for r in result_scalars)
        )
        self._description = _Description(
            run,
            callback,
            tensor_to_handle_capsule,
            handle_capsules_to_tensors,
            len(input_is_tensor),
            ctypes.addressof(self._inputs),
            ctypes.addressof(self._constants),
            frame.first_result,
            frame.first_constant,
            frame.num_slots,
            frame.num_scalars,
            len(result_scalars),
            ctypes.addressof(self._results),
        )
        self._method = _MethodDef(b"call", self._library.address("call"), _ONE_ARGUMENT, None)
        capsule = _capsule_new(ctypes.addressof(self._description), None, None)
        self.call: Callable[[list[Any]], list[Any] | None] = _function_new(
            ctypes.addressof(self._method), capsule, None
        )


@cache
def _library() -> Library:
    def resolve(name: str) -> int | None:
        return python_symbol(name) or torch_symbol(name)

    thread_count = _TAKE_THREAD_COUNT if capabilities().thread_count else ""
    text = _TEXT.replace("; take over the thread count", thread_count)
    return compile_library(text, native_target(), resolve, CompileOptions(opt_level=0, codegen_level=0))


# `torch.set_num_threads` reaches a thread when it first asks for the number.
_TAKE_THREAD_COUNT = "%threads = call i32 @torch_get_num_threads(ptr %word)"

_TEXT = """
@_Py_NoneStruct = external global i8
@PyExc_TypeError = external global ptr
@message = private constant [43 x i8] c"expected a list of %zd inputs, found %zd\\00\\00\\00"

declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyCapsule_New(ptr, ptr, ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i32 @PyList_Insert(ptr, i64, ptr)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_Format(ptr, ptr, ...)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @torch_get_num_threads(ptr)
declare i1 @aoti_torch_grad_mode_is_enabled()
declare void @aoti_torch_grad_mode_set_enabled(i1 zeroext)
declare i32 @aoti_torch_delete_tensor_object(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @field(ptr %description, i64 %number) alwaysinline {
  %place = getelementptr i64, ptr %description, i64 %number
  %value = load ptr, ptr %place
  ret ptr %value
}

define internal i64 @number(ptr %description, i64 %number) alwaysinline {
  %place = getelementptr i64, ptr %description, i64 %number
  %value = load i64, ptr %place
  ret i64 %value
}

; Run the program on a frame, with the GIL released and gradients off.
define internal i32 @execute(ptr %d, ptr %slots, ptr %scalars) {
  %word = alloca i64
  %run = call ptr @field(ptr %d, i64 0)
  %callback = call ptr @field(ptr %d, i64 1)
  %state = call ptr @PyEval_SaveThread()
  ; take over the thread count
  %grad = call zeroext i1 @aoti_torch_grad_mode_is_enabled()
  br i1 %grad, label %off, label %go
off:
  call void @aoti_torch_grad_mode_set_enabled(i1 zeroext false)
  br label %go
go:
  %status = call i32 %run(ptr %slots, ptr %scalars, ptr %callback)
  br i1 %grad, label %on, label %clear
on:
  call void @aoti_torch_grad_mode_set_enabled(i1 zeroext true)
  br label %clear
clear:
  %first.result = call i64 @number(ptr %d, i64 7)
  %first.constant = call i64 @number(ptr %d, i64 8)
  %worked = icmp eq i32 %status, 0
  %count = select i1 %worked, i64 %first.result, i64 %first.constant
  call void @clear(ptr %slots, i64 %count)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status
}

; Give up the handles in the first slots.
define internal void @clear(ptr %slots, i64 %count) {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %after]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %place = getelementptr ptr, ptr %slots, i64 %i
  %handle = load ptr, ptr %place
  %absent = icmp eq ptr %handle, null
  br i1 %absent, label %after, label %delete
delete:
  %status = call i32 @aoti_torch_delete_tensor_object(ptr %handle)
  br label %after
after:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

; Put the inputs into the frame. Returns false with a Python exception set.
define internal i1 @take_inputs(ptr %d, ptr %inputs, ptr %slots, ptr %scalars) {
entry:
  %expected = call i64 @number(ptr %d, i64 4)
  %count = call i64 @PyList_Size(ptr %inputs)
  %kinds = call ptr @field(ptr %d, i64 5)
  %matches = icmp eq i64 %count, %expected
  br i1 %matches, label %head, label %wrong
wrong:
  %kind = load ptr, ptr @PyExc_TypeError
  %ignored = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %kind, ptr @message, i64 %expected, i64 %count)
  ret i1 false
head:
  %i = phi i64 [0, %entry], [%i.next, %tensor.good], [%i.next, %integer.good]
  %t = phi i64 [0, %entry], [%t.next, %tensor.good], [%t, %integer.good]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %item, label %good
item:
  %i.next = add i64 %i, 1
  %object = call ptr @PyList_GetItem(ptr %inputs, i64 %i)
  %kind.place = getelementptr i8, ptr %kinds, i64 %i
  %kind.byte = load i8, ptr %kind.place
  %is.tensor = icmp ne i8 %kind.byte, 0
  br i1 %is.tensor, label %tensor, label %integer
tensor:
  %t.next = add i64 %t, 1
  %slot = getelementptr ptr, ptr %slots, i64 %t
  %took = call i1 @take_handle(ptr %d, ptr %object, ptr %slot)
  br i1 %took, label %tensor.good, label %bad
tensor.good:
  br label %head
integer:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %scalar.number = sub i64 %i, %t
  %scalar.place = getelementptr i64, ptr %scalars, i64 %scalar.number
  store i64 %value, ptr %scalar.place
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %integer.check, label %integer.good
integer.check:
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %bad, label %integer.good
integer.good:
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

; Put a new handle of a tensor into a slot. Returns false with a Python exception set.
define internal i1 @take_handle(ptr %d, ptr %tensor, ptr %slot) {
entry:
  %function = call ptr @field(ptr %d, i64 2)
  %capsule = call ptr @PyObject_CallOneArg(ptr %function, ptr %tensor)
  %failed = icmp eq ptr %capsule, null
  br i1 %failed, label %bad, label %good
good:
  %handle = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr null)
  store ptr %handle, ptr %slot
  call void @Py_DecRef(ptr %capsule)
  ret i1 true
bad:
  ret i1 false
}

; Make the list of results.
define internal ptr @give_results(ptr %d, ptr %slots, ptr %scalars) {
entry:
  %first.result = call i64 @number(ptr %d, i64 7)
  %first.constant = call i64 @number(ptr %d, i64 8)
  %num.tensors = sub i64 %first.constant, %first.result
  %handles = getelementptr ptr, ptr %slots, i64 %first.result
  %capsules = call ptr @PyList_New(i64 %num.tensors)
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %num.tensors
  br i1 %more, label %body, label %convert
body:
  %place = getelementptr ptr, ptr %handles, i64 %i
  %handle = load ptr, ptr %place
  %capsule = call ptr @PyCapsule_New(ptr %handle, ptr null, ptr null)
  %s0 = call i32 @PyList_SetItem(ptr %capsules, i64 %i, ptr %capsule)
  %next = add i64 %i, 1
  br label %head
convert:
  %function = call ptr @field(ptr %d, i64 3)
  %tensors = call ptr @PyObject_CallOneArg(ptr %function, ptr %capsules)
  call void @Py_DecRef(ptr %capsules)
  %count = call i64 @number(ptr %d, i64 11)
  %all = icmp eq i64 %num.tensors, %count
  %failed = icmp eq ptr %tensors, null
  %done = or i1 %all, %failed
  br i1 %done, label %finish, label %insert.head
finish:
  ret ptr %tensors
insert.head:
  %j = phi i64 [0, %convert], [%j.next, %after]
  %insert.more = icmp ult i64 %j, %count
  br i1 %insert.more, label %pick, label %finish
pick:
  %j.next = add i64 %j, 1
  %numbers = call ptr @field(ptr %d, i64 12)
  %number.place = getelementptr i64, ptr %numbers, i64 %j
  %number = load i64, ptr %number.place
  %is.tensor = icmp slt i64 %number, 0
  br i1 %is.tensor, label %after, label %integer
integer:
  %scalar.place = getelementptr i64, ptr %scalars, i64 %number
  %value = load i64, ptr %scalar.place
  %object = call ptr @PyLong_FromLongLong(i64 %value)
  %s1 = call i32 @PyList_Insert(ptr %tensors, i64 %j, ptr %object)
  call void @Py_DecRef(ptr %object)
  br label %after
after:
  br label %insert.head
}

define ptr @call(ptr %self, ptr %inputs) {
entry:
  %d = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %first.constant = call i64 @number(ptr %d, i64 8)
  %num.slots = call i64 @number(ptr %d, i64 9)
  %num.scalars = call i64 @number(ptr %d, i64 10)
  %slots = alloca ptr, i64 %num.slots
  %scalars = alloca i64, i64 %num.scalars
  %bytes = mul i64 %num.slots, 8
  call void @llvm.memset.p0.i64(ptr %slots, i8 0, i64 %bytes, i1 false)
  %constants = call ptr @field(ptr %d, i64 6)
  %constant.slots = getelementptr ptr, ptr %slots, i64 %first.constant
  %num.constants = sub i64 %num.slots, %first.constant
  %constant.bytes = mul i64 %num.constants, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %constant.slots, ptr %constants, i64 %constant.bytes, i1 false)
  %good = call i1 @take_inputs(ptr %d, ptr %inputs, ptr %slots, ptr %scalars)
  br i1 %good, label %begin, label %bad
begin:
  %count = call i64 @number(ptr %d, i64 4)
  %s0 = call i32 @PyList_SetSlice(ptr %inputs, i64 0, i64 %count, ptr null)
  %status = call i32 @execute(ptr %d, ptr %slots, ptr %scalars)
  %worked = icmp eq i32 %status, 0
  br i1 %worked, label %give, label %failed
give:
  %results = call ptr @give_results(ptr %d, ptr %slots, ptr %scalars)
  ret ptr %results
failed:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
bad:
  call void @clear(ptr %slots, i64 %first.constant)
  ret ptr null
}
"""
