"""The global symbols of an ELF object: which it needs from outside and which functions it offers.

LLVM's code generator may add calls that the IR text does not show (`memset`, `expf`), so what an object needs is read
from the object itself.
"""

import struct
from typing import NamedTuple

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_UNDEFINED_SECTION = 0
_LOCAL = 0
_FUNCTION = 2
_DEFAULT_VISIBILITY = 0


class ObjectSymbols(NamedTuple):
    """Names in the order of the object's symbol table."""

    undefined: tuple[str, ...]
    functions: tuple[str, ...]
    """Functions that are defined and visible from outside."""


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def _section(image: bytes, position: int) -> _Section:
    _, kind, _, _, offset, size, link, *_ = _SECTION_HEADER.unpack_from(image, position)
    return _Section(kind, offset, size, link)


def object_symbols(image: bytes) -> ObjectSymbols:
    """Read the symbol table of a 64-bit little-endian ELF object. Raises ValueError if `image` is none."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF object")
    (table_offset,) = struct.unpack_from("<Q", image, 40)
    entry_size, count = struct.unpack_from("<HH", image, 58)
    sections = [_section(image, table_offset + i * entry_size) for i in range(count)]
    undefined: list[str] = []
    functions: list[str] = []
    for section in sections:
        if section.kind != _SYMTAB:
            continue
        names = sections[section.link].offset
        for position in range(section.offset + _SYMBOL.size, section.offset + section.size, _SYMBOL.size):
            name_offset, info, other, defined_in, _, _ = _SYMBOL.unpack_from(image, position)
            if info >> 4 == _LOCAL:
                continue
            start = names + name_offset
            name = image[start : image.index(b"\0", start)].decode()
            if defined_in == _UNDEFINED_SECTION:
                # The linker makes this one itself.
                if name != "_GLOBAL_OFFSET_TABLE_":
                    undefined.append(name)
            elif info & 15 == _FUNCTION and other & 3 == _DEFAULT_VISIBILITY:
                functions.append(name)
    return ObjectSymbols(tuple(undefined), tuple(functions))
