"""Max-min fair rates of a group with several bottlenecks, by classes of transfers that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

Load = tuple[int, float]
"""(link, coefficient)."""

_REMEMBERED = 100_000  # solutions kept; beyond, a run starts anew


class Filling:
    """Progressive filling over classes: members with one cap and one load on the links they share.

    Equal workers of a parameter server are in few classes however many they are, and an asynchronous run
    meets the same mixtures of them again and again: what was solved once is looked up.

    Parameters
    ----------
    capacity : list of float
        Bytes per second of every link.
    users : list of int
        Active transfers of every link, as the network counts them.
    loads : callable
        Task -> its (link, coefficient) pairs.
    cap : list of float
        Cap of every task.
    weights : mapping of int to float
        Weights of transfers, where the service is weighted; else empty.
    """

    def __init__(
        self,
        capacity: Sequence[float],
        users: Sequence[int],
        loads: Callable[[int], Sequence[Load]],
        cap: Sequence[float],
        weights: Mapping[int, float],
    ) -> None:
        self._capacity, self._users, self._loads, self._cap = capacity, users, loads, cap
        self._weights = weights
        self._numbers: dict[tuple[float | Load, ...], int] = {}
        self._kinds: list[tuple[float, tuple[Load, ...]]] = []
        self._class: dict[int, int] = {}
        self._sole = [0] * len(capacity)  # users of each link, combined by exclusive or: one user is itself
        self._known: dict[tuple[tuple[int, int], ...], list[float]] = {}

    def joins(self, instance: int, link: int) -> None:
        """A transfer becomes a user of a link; told before it is counted."""
        if self._users[link] == 1:
            self._class.pop(self._sole[link], None)
        self._sole[link] ^= instance

    def leaves(self, instance: int, link: int) -> None:
        """A transfer is a user of a link no longer; told after it has been counted out."""
        self._sole[link] ^= instance
        if self._users[link] == 1:
            self._class.pop(self._sole[link], None)

    def forget(self, instance: int) -> None:
        """A transfer is over."""
        self._class.pop(instance, None)

    def rates(self, members: Iterable[int], stride: int) -> dict[int, float]:
        """Rate of every member: instances of tasks, ``stride`` apart."""
        alike: dict[int, list[int]] = {}
        current = self._class
        for i in members:
            number = current.get(i, -1)
            if number < 0:
                number = current[i] = self._class_of(i, i % stride)
            if number in alike:
                alike[number].append(i)
            else:
                alike[number] = [i]
        key = tuple(sorted([(number, len(found)) for number, found in alike.items()]))
        levels = self._known.get(key)
        if levels is None:
            levels = self._solve(key)
            if not self._weights:  # weights are drawn anew for every transfer
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = levels
        pairs = zip(key, levels, strict=True)
        if self._weights:
            weights = self._weights
            return {i: level * weights[i] for (number, _), level in pairs for i in alike[number]}
        return {i: level for (number, _), level in pairs for i in alike[number]}

    def _class_of(self, instance: int, task: int) -> int:
        """Number of the class: what a transfer takes of links that others use as well, and the rate of an
        unweighted flow that its cap and the links of its own allow."""
        users, weight = self._users, self._weights.get(instance, 1.0) if self._weights else 1.0
        cap = self._cap[task] / weight
        key: list[float | Load] = [cap]
        for load in self._loads(task):
            link, amount = load
            if users[link] == 1:
                cap = min(cap, self._capacity[link] / (amount * weight))
            else:
                key.append(load if weight == 1.0 else (link, amount * weight))
        key[0] = cap
        found = tuple(key)
        number = self._numbers.get(found)
        if number is None:
            number = self._numbers[found] = len(self._kinds)
            self._kinds.append((cap, found[1:]))  # type: ignore[arg-type]
        return number

    def _solve(self, counted: tuple[tuple[int, int], ...]) -> list[float]:
        """Rate of an unweighted flow in each class: in turn settle the classes on the most contended link, or
        the one of lowest cap."""
        capacity, kinds = self._capacity, self._kinds
        residual: dict[int, float] = {}
        load: dict[int, float] = {}
        on: dict[int, list[int]] = {}
        caps: list[tuple[float, int]] = []
        for place, (number, count) in enumerate(counted):
            cap, shared = kinds[number]
            for link, amount in shared:
                if link in load:
                    load[link] += amount * count
                    on[link].append(place)
                else:
                    load[link], residual[link], on[link] = amount * count, capacity[link], [place]
            caps.append((cap, place))
        caps.sort(reverse=True)
        left = {link: len(places) for link, places in on.items()}
        levels = [-1.0] * len(counted)
        unsettled = len(counted)
        while unsettled:
            while levels[caps[-1][1]] >= 0.0:
                caps.pop()
            level, settled = caps[-1][0], [caps[-1][1]]
            for link, total in load.items():
                if residual[link] < level * total:
                    level, settled = residual[link] / total, on[link]
            level = max(level, 0.0)
            for place in settled:
                if levels[place] >= 0.0:
                    continue
                levels[place] = level
                unsettled -= 1
                number, count = counted[place]
                for link, amount in kinds[number][1]:
                    left[link] -= 1
                    if left[link]:
                        residual[link] -= amount * count * level
                        load[link] -= amount * count
                    else:
                        del load[link]
        return levels
