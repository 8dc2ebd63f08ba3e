from triton.language import core as core
