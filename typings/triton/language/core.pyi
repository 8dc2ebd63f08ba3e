from triton.runtime.interpreter import TensorHandle

class dtype: ...

class tensor:
    handle: TensorHandle
    dtype: dtype
    type: dtype

    def __init__(self, handle: TensorHandle, type: dtype) -> None: ...
