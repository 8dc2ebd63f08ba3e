from triton.language import core

class TensorHandle:
    data: object

    def __init__(self, data: object, dtype: core.dtype) -> None: ...
