"""What every compressor says of itself: bytes on the wire, work of both ends, how sums behave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from sim.wire.tensors import Content

FP32 = 4.0
Parameter = Literal["", "ratio", "levels", "rank"]


@dataclass(frozen=True)
class Options:
    """The numbers a user may choose.

    Parameters
    ----------
    ratio : float, optional
        Fraction of the elements that is sent (``vector_quant``, ``sketch``: of the bytes).
    levels : int, optional
        Magnitudes an element is rounded to, zero included.
    rank : int
        Rank of two factors.
    """

    ratio: float | None = None
    levels: int | None = None
    rank: int = 1


@dataclass(frozen=True)
class Message:
    """One collective's worth of bytes that a rank contributes.

    Parameters
    ----------
    size : float
        Bytes per rank.
    reducible : bool
        Whether messages of several ranks can be summed on the way as they are.
    shared : bool
        Whether every rank needs the whole result whatever becomes of the gradients (scales, norms).
    """

    size: float
    reducible: bool = True
    shared: bool = False


@dataclass(frozen=True)
class Work:
    """Work of an encoder or decoder: bytes of device memory moved, and floating-point operations."""

    traffic: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.traffic + other.traffic, self.flops + other.flops)

    def times(self, factor: float) -> Work:
        """So many times the work."""
        return Work(self.traffic * factor, self.flops * factor)


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """One wire format of gradients.

    Attributes
    ----------
    name, description, source : str
        Name in the taxonomy, one line for a user, where the numbers come from.
    error_feedback : bool
        Whether the sender keeps what it did not send, one more array of the gradients' size.
    inline : bool
        Whether both ends' work rides on the communication stream (casts in a communication hook); else it
        queues for the device's compute stream.
    scatters : bool
        Whether a rank can decode its part of a sum alone, so that a reduce-scatter can carry it.
    served : bool
        Whether a parameter server can decode what one worker sends.
    recodes : bool
        Whether a hop can decode, add and encode again.
    votes : bool
        Whether a switch or server can count the codes as they are.
    activations : bool
        Whether it also suits activations: no residuals, no choice that ranks agree on first.
    fitted : str
        Calibration parameter (``framework/default``) with the measured seconds of both ends' work per
        element and rank, if there is one.
    """

    parameter: ClassVar[Parameter] = ""

    name: str
    description: str
    source: str
    default: float = 0.0
    error_feedback: bool = False
    inline: bool = False
    scatters: bool = True
    served: bool = True
    recodes: bool = True
    votes: bool = False
    activations: bool = False
    fitted: str = ""

    @property
    def reducible(self) -> bool:
        """Whether everything it sends can be summed on the way."""
        return True

    def chosen(self, options: Options) -> float:
        """Its parameter: what the user chose, else the published default."""
        given = getattr(options, self.parameter) if self.parameter else None
        return self.default if given is None else float(given)

    @abstractmethod
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        """What one rank sends for a bucket, one collective after another.

        Parameters
        ----------
        content : Content
        element_bytes : float
            Bytes of a gradient element before compression.
        options : Options
        """

    @abstractmethod
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        """Work of the sender."""

    @abstractmethod
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        """Work of a receiver of the encoded gradients of ``pieces`` ranks, or of their sum (1)."""

    def size(self, content: Content, element_bytes: float, options: Options) -> float:
        """Bytes of all messages of one rank."""
        return sum(message.size for message in self.messages(content, element_bytes, options))

    def touched(self, content: Content, options: Options) -> float:
        """Elements of a bucket that one rank's message changes."""
        return content.elements

    def aggregate_size(self, content: Content, element_bytes: float, options: Options, ranks: int) -> float:
        """Bytes of the encoded sum of ``ranks`` ranks' gradients; at most the plain gradients."""
        return self.size(content, element_bytes, options)
