"""What all parts share: counts of what held and broke, reproducible Hypothesis examples, and a time limit."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

#: Draws a value from a strategy.
Draw = Callable[[st.SearchStrategy[Any]], Any]
#: Tries one drawn example; what is wrong with the answer, or `None`.
Trial = Callable[[Draw], str | None]
#: How many examples belong to one seed. The first of them is always the simplest one.
BATCH = 10


@dataclass
class Tally:
    """What was tried, what held and what broke in one part, which should end at `until` (`time.monotonic`)."""

    part: str
    seed: int
    until: float
    tried: int = 0
    broke: list[str] = field(default_factory=list)
    numbers: dict[str, object] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def goes_on(self, done: int, trials: int | None) -> bool:
        """Whether another trial is due: until time is up, or until `trials` are done."""
        return time.monotonic() < self.until if trials is None else done < trials

    def held(self, problem: str | None, what: str) -> bool:
        """Count a trial; `what` identifies it, so that it can be repeated."""
        self.tried += 1
        if problem is not None:
            self.broke.append(f"{what}: {problem}")
            print(f"  broke: {self.broke[-1]}", flush=True)
        return problem is None

    def line(self) -> str:
        seconds, held = time.monotonic() - self.began, self.tried - len(self.broke)
        counts = f"tried {self.tried:>6}  held {held:>6}  broke {len(self.broke):>4}  {seconds:6.0f} s"
        return f"{self.part:<12} {counts}" + "".join(f"  {name} {value}" for name, value in self.numbers.items())


class _Enough(BaseException):
    """Ends the examples of a seed."""


def each(seed: str, act: Callable[[Draw, int], bool]) -> None:
    """Call `act(draw, number)` for the examples of a seed, while it returns true.

    What `act` draws may depend on nothing but what it drew before, so that the same seed gives the same examples.
    """
    numbers = count()
    quiet = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}

    @hypothesis.seed(seed)
    @settings(**quiet, max_examples=BATCH, phases=[Phase.generate])  # type: ignore[arg-type]
    @given(st.data())
    def example(data: st.DataObject) -> None:
        if not act(data.draw, next(numbers)):
            raise _Enough

    with suppress(_Enough):
        example()


def fuzz(tally: Tally, cases: Mapping[str, Trial], trials: int | None = None) -> None:
    """Try batches of every case in turn, until time is up or each case had so many `trials`."""
    for batch in count():
        if not tally.goes_on(batch * BATCH, trials):
            return
        for name, trial in cases.items():
            seed = f"{tally.seed}-{batch}"

            def act(draw: Draw, number: int, name: str = name, trial: Trial = trial, seed: str = seed) -> bool:
                tally.held(trial(draw), f"--repeat {f'{tally.part}/{name}/{seed}/{number}'!r}")
                return tally.goes_on(int(seed.rpartition("-")[2]) * BATCH + number + 1, trials)

            each(f"{name}-{seed}", act)


def repeat(cases: Mapping[str, Trial], example: str) -> str | None:
    """Run a reported example (`NAME/SEED/NUMBER`) again, after those before it; what is wrong with its answer."""
    name, seed, number = example.rsplit("/", 2)
    problems: dict[int, str | None] = {}  # without rejected examples

    def act(draw: Draw, at: int) -> bool:
        problems[at] = cases[name](draw)
        return at < int(number)

    each(f"{name}-{seed}", act)
    return problems[int(number)]


def pick(draw: Draw, *values: Any) -> Any:
    """One of several values."""
    return draw(st.sampled_from(values))


def one_in(draw: Draw, number: int) -> bool:
    """True once in so many times; false in the simplest example."""
    return bool(draw(st.integers(0, number - 1)) == number - 1)


class Late(BaseException):
    """No answer in time; no handler of the package takes it for an expected failure."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Late` in the block when time is up."""

    def ring(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limited_memory(more: int = 4 << 30) -> Iterator[None]:
    """A limit on memory, so that a huge number is an error of the call and does not stop the machine."""
    before, state = resource.getrlimit(resource.RLIMIT_AS), Path("/proc/self/statm")
    if not state.exists():  # a system that does not enforce the limit
        yield
        return
    taken = int(state.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
