"""The exception tree. Every error a user can cause is one line and knows its exit code."""

from __future__ import annotations

_LONGEST = 400  # characters of a value that a message repeats


class ClusterloomError(Exception):
    """Base of all errors raised by clusterloom."""

    exit_code = 1


class InputError(ClusterloomError):
    """Input that cannot be used: ``field: must be ... Got ... Try ... (file:line)``.

    Parameters
    ----------
    field : str
        Dotted path of the offending field, e.g. ``strategy.tp``.
    must : str
        What the field must be, starting after the word "must", e.g. ``"divide num_heads (96)"``.
    got : object
        The value that was given; omitted from the message when it is ``None``.
    hint : str
        A full sentence with the nearest valid alternative, e.g. ``"Try 6 or 8."``.
    where : str
        ``file:line`` of the value, if it came from a file.
    """

    exit_code = 2

    def __init__(self, field: str, must: str, got: object = None, *, hint: str = "", where: str = "") -> None:
        self.field, self.must, self.got, self.hint, self.where = field, must, got, hint, where
        super().__init__(field, must, got)

    def __str__(self) -> str:
        parts = [f"{self.field}: must {self.must}."]
        if self.got is not None:
            got = str(self.got)
            parts.append(f"Got {got if len(got) <= _LONGEST else got[: _LONGEST - 3] + '...'}.")
        if self.hint:
            parts.append(self.hint)
        if self.where:
            parts.append(f"({self.where})")
        return " ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[InputError], state: dict[str, object]) -> InputError:
    """Unpickle an error with everything that was set on it (workers of a sweep send errors back)."""
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = (error.field, error.must, error.got)
    return error


class InvalidStrategyError(InputError):
    """A strategy that a taxonomy rule refuses; ``rule`` names the rule."""

    exit_code = 3
    rule = ""


class InfeasibleError(ClusterloomError):
    """A valid strategy that does not fit the device memory."""

    exit_code = 3

    def __init__(self, message: str, missing_bytes: float) -> None:
        super().__init__(message, missing_bytes)
        self.missing_bytes = missing_bytes

    def __str__(self) -> str:
        return str(self.args[0])


class Deadlock(ClusterloomError):
    """A run that ended with unfinished tasks; the message carries the wait-for chain."""


class InvariantError(ClusterloomError):
    """A run that broke a law of the engine (bytes, capacity, causality, bounds)."""


class Terminated(BaseException):
    """The process was asked to end (SIGTERM); like KeyboardInterrupt no error that a program handles."""
