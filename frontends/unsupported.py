"""The one exception by which a frontend says that it cannot import a graph; the caller may fall back to eager."""

from __future__ import annotations


class Unsupported(Exception):
    """A graph holds something that the IR cannot say.

    `reason` is what was found and what was expected; `operator` names the overload, `aten.nonzero.default`; `where` is
    the place in the user's program, `model.py:12`. Whoever knows one of these fills it in: see `at`.
    """

    def __init__(self, reason: str, *, operator: str | None = None, where: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operator = operator
        self.where = where

    def at(self, operator: str | None, where: str | None) -> Unsupported:
        """Return this error with what was not yet known of its place."""
        return Unsupported(self.reason, operator=self.operator or operator, where=self.where or where)

    def __str__(self) -> str:
        operator = "" if self.operator is None else f"`{self.operator}`: "
        where = "" if self.where is None else f" (at {self.where})"
        return f"{operator}{self.reason}{where}"
