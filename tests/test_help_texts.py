"""The texts of `--help`: each option that takes a number says in which unit, and what happens without it."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from reproduction.__main__ import app as reproduction
from zloss_lab.cli import app as lab

UNIT = re.compile(r"\b(numbers? of \w|values? of \w|seconds\b|shares? of\b|seed\b)")
NUMBERS = re.compile(r"[\d_,.]+")  # the default of an option for numbers that commas separate


def commands(app: typer.Typer, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the names of all commands with their functions."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{name} {command.name or command.callback.__name__}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{name} {group.name}")


def number_options(command: Callable[..., Any]) -> Iterator[tuple[str, OptionInfo, object]]:
    """Yield the options of a command that take numbers, with their defaults."""
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint = hints.get(parameter.name, parameter.annotation)
        kind, info = get_args(hint)[:2]
        takes_numbers = bool({int, float} & set(parts_of(kind)))
        if isinstance(info, OptionInfo) and (
            takes_numbers or NUMBERS.fullmatch(str(parameter.default))
        ):
            yield parameter.name, info, parameter.default


def parts_of(kind: Any) -> list[Any]:
    """Return the types that a type is made of.

    >>> parts_of(tuple[float, float] | None)
    [<class 'float'>, <class 'float'>, <class 'NoneType'>]
    """
    inner = get_args(kind)
    return [part for one in inner for part in parts_of(one)] if inner else [kind]


def help_faults(command: Callable[..., Any]) -> Iterator[str]:
    for name, option, default in number_options(command):
        text = option.help or ""
        if not UNIT.search(text):
            yield f"{name} has no unit: {text!r}"
        is_required = default is inspect.Parameter.empty
        if default is None and not isinstance(option.show_default, str) and not is_required:
            yield f"{name} does not say its default: {text!r}"


COMMANDS = {
    name: command
    for app, first in ((lab, "zloss"), (reproduction, "python -m reproduction"))
    for name, command in commands(app, first)
}


@pytest.mark.parametrize("name", COMMANDS)
def test_numbers_have_units_and_defaults(name: str) -> None:
    assert not list(help_faults(COMMANDS[name]))


def test_the_options_are_found() -> None:
    """Numbers, pairs of numbers, and texts of numbers; from a function and from the dataclasses of its options."""
    found = {
        f"{name} --{option.replace('_', '-')}"
        for name, command in COMMANDS.items()
        for option, _, _ in number_options(command)
    }
    assert found >= {
        "zloss evaluate --limit",
        "zloss data prepare --fractions",
        "zloss bench output --batch",
        "zloss tune run --first",
        "python -m reproduction run figure3 --b",
    }
    assert len(found) > 40


def test_faults_are_found() -> None:
    def command(
        wrong: Annotated[int, typer.Option(help="how many")] = 3,
        texts: Annotated[str, typer.Option(help="separated by commas")] = "1,2",
        unsaid: Annotated[float | None, typer.Option(help="number of steps")] = None,
        right: Annotated[int | None, typer.Option(help="seconds", show_default="all")] = None,
        word: Annotated[str, typer.Option(help="a name")] = "one",
    ) -> None: ...

    assert [fault.split()[0] for fault in help_faults(command)] == ["wrong", "texts", "unsaid"]
