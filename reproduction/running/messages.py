"""Messages about the course of an experiment. The code that runs it gets a function that shows them to the user."""

from collections.abc import Callable

Tell = Callable[[str], None]


def say_nothing(_: str) -> None:
    """Drop a message. Unlike a lambda, a function with a name can be sent to another process."""
