from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

__version__: str

class CompiledKernel:
    asm: dict[str, bytes]

def compile(src: ASTSource, target: GPUTarget, options: dict[str, object]) -> CompiledKernel: ...
