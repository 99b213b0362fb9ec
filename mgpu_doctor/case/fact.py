"""What frozen dataclasses have in common, made once for many of them."""

from __future__ import annotations


class Fact:
    """Equality, hash and words by value, as `dataclass` gives them. It would compile all three anew
    for each class, which took a thirtieth of `top --once`: a class of facts that is loaded there
    says `eq=False, repr=False` and has these."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fact) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        told = zip(self.__slots__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told)})"
