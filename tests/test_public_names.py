"""The public names of the library: exactly those in `public_names.txt`, with their parameters, and each documented."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import zloss

FROZEN = (Path(__file__).parent / "public_names.txt").read_text("utf-8").splitlines()

# Methods whose meaning is that of nn.Module; the class documents what its own do.
DOCUMENTED_BY_TORCH = {"forward", "extra_repr"}


def public_names(owner: object) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(owner).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def own_classes(cls: type) -> list[type]:
    """Return the class and those of its bases that belong to the same top package."""
    package = cls.__module__.partition(".")[0]
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] == package]


def is_method(value: object) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def parameters(function: Callable[..., Any]) -> str:
    """Return the names of the parameters as Python writes them, without types and default values."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=parameter.empty, default=parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def surface_of_class(name: str, cls: type, public: set[object]) -> Iterator[str]:
    """Yield a line for the class and one for each of its methods that no other public class has already."""
    yield name + parameters(cls)
    seen: set[str] = set()
    for own_class in own_classes(cls):
        if own_class is not cls and own_class in public:
            return
        for method, value in public_names(own_class).items():
            if method in seen or not is_method(value):
                continue
            seen.add(method)
            bound = inspect.getattr_static(cls, method)
            shape = "" if isinstance(bound, property) else parameters(getattr(cls, method))
            yield f"{name}.{method}{shape}"


def surface(names: dict[str, Any]) -> list[str]:
    public = set(names.values())
    lines = list[str]()
    for name, value in names.items():
        is_class = inspect.isclass(value)
        lines += surface_of_class(name, value, public) if is_class else [name + parameters(value)]
    return sorted(lines)


def methods_without_docstring(cls: type) -> list[str]:
    """Return the public methods and properties of our own classes that none of these classes documents."""
    classes = own_classes(cls)
    methods = {
        name: any(vars(base)[name].__doc__ for base in classes if name in vars(base))
        for own_class in classes
        for name, value in public_names(own_class).items()
        if is_method(value)
    }
    return [
        name
        for name, is_documented in methods.items()
        if not is_documented and name not in DOCUMENTED_BY_TORCH
    ]


def test_the_public_names_are_frozen() -> None:
    assert surface(public_names(zloss)) == FROZEN, "change public_names.txt only on purpose"


def test_a_changed_surface_is_seen() -> None:
    class Base:
        def inherited(self, a: int) -> None: ...

    class Public(Base):
        def __init__(self, a: int, *, b: int = 3) -> None: ...

        def method(self, x: int, *more: int, y: int = 0, **rest: int) -> None: ...

        @property
        def size(self) -> int:
            return 0

        @classmethod
        def made(cls, x: int, /) -> None: ...

        def _private(self) -> None: ...

    class Derived(Public):
        def added(self) -> None: ...

    def function(*, option: int = 1) -> None: ...

    assert surface({"Public": Public, "Derived": Derived, "function": function}) == [
        "Derived(a, *, b)",
        "Derived.added(self)",
        "Public(a, *, b)",
        "Public.inherited(self, a)",
        "Public.made(x, /)",
        "Public.method(self, x, *more, y, **rest)",
        "Public.size",
        "function(*, option)",
    ]


@pytest.mark.parametrize("name", public_names(zloss))
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(zloss, name)
    assert value.__doc__
    if inspect.isclass(value):
        assert methods_without_docstring(value) == []


def test_missing_docstrings_are_seen() -> None:
    class Base:
        def documented(self) -> None:
            """Documented here, and so wherever it is overridden."""

    class Derived(Base):
        def documented(self) -> None: ...

        def undocumented(self) -> None: ...

        @property
        def bare(self) -> int:
            return 0

    assert methods_without_docstring(Derived) == ["undocumented", "bare"]
