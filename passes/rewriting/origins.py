"""Where an operation that was made of several comes from."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, FusedLoc, LocationAttr, NoneAttr, UnknownLoc
from xdsl.ir import Attribute, Operation

from tilewright.dialects.type_guards import is_array

_ORIGIN = "origin"


def merge_origins(into: Operation, earlier: Operation) -> None:
    """Put the attribute `origin` and the location of `earlier` in front of those of `into`, each only once."""
    origins = dict.fromkeys([*_origins(earlier), *_origins(into)])
    if origins:
        into.attributes[_ORIGIN] = ArrayAttr(list(origins))
    into.location = fuse_locations(earlier.location, into.location)


def fuse_locations(*locations: LocationAttr) -> LocationAttr:
    """Return the location that stands for all of `locations`."""
    parts = list(dict.fromkeys(part for location in locations for part in _parts(location)))
    if not parts:
        return UnknownLoc()
    if len(parts) == 1:
        return next(location for location in locations if not isinstance(location, UnknownLoc))
    return FusedLoc(tuple(parts), NoneAttr())


def _origins(op: Operation) -> tuple[Attribute, ...]:
    found = op.attributes.get(_ORIGIN)
    return found.data if found is not None and is_array(found) else ()


def _parts(location: LocationAttr) -> tuple[Attribute, ...]:
    if isinstance(location, UnknownLoc):
        return ()
    if isinstance(location, FusedLoc) and is_array(location.locations):
        return location.locations.data
    return (location,)
