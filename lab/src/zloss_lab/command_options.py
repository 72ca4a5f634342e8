"""Options of commands as dataclasses, so that each option is defined once.

The fields of a dataclass are `Annotated` with `typer.Option`. A command that takes such a dataclass as a parameter gets
one option for each field:

    @dataclass(frozen=True, kw_only=True)
    class SearchOptions:
        seed: Annotated[int | None, typer.Option(help="seed of the search")] = None

    @app.command()
    @with_options
    def search(folder: Path, options: SearchOptions) -> None: ...
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer

from zloss_lab.evaluation import TOP_K

AsJson = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="changes one setting; may be given several times. docs/lab.md has all keys",
    ),
]
SCORE_HELP = f"top_K_error with K = {', '.join(map(str, TOP_K))}; mrr, mean_rank or perplexity"


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option for each field of the dataclasses among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint):
            groups[parameter.name] = hint  # type: ignore[assignment]
            parameters += _parameters(hint)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hint, kind=kind))

    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {one.name: one.annotation for one in parameters}
    return expanded


def given_options(options: Any) -> list[str]:
    """Return the options that the user has given, as they are written on the command line.

    >>> @dataclasses.dataclass
    ... class Options:
    ...     settings: Annotated[list[str] | None, typer.Option("--set")] = None
    ...     seed: Annotated[int | None, typer.Option()] = None
    >>> given_options(Options(settings=["a=1"])), given_options(Options(seed=0))
    (['--set'], ['--seed'])
    """
    hints = get_type_hints(type(options), include_extras=True)
    return [
        _flag(field.name, hints[field.name])
        for field in dataclasses.fields(options)
        if getattr(options, field.name) not in (field.default, [])
    ]


def _parameters(options: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(options, include_extras=True)
    for field in dataclasses.fields(options):
        absent = field.default is dataclasses.MISSING
        default = inspect.Parameter.empty if absent else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name])


def _flag(name: str, hint: Any) -> str:
    option = hint.__metadata__[0]
    names = [text for text in (option.default, *(option.param_decls or ())) if text is not ...]
    return str(names[0]) if names else f"--{name.replace('_', '-')}"
