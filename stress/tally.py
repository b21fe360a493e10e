"""What was tried, what held, what broke, and how to repeat it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Tally:
    """The counts of one part of the stress tests; `until` is when it should end, by `time.monotonic`."""

    part: str
    seed: int
    until: float
    tried: int = 0
    broke: list[str] = field(default_factory=list)
    numbers: dict[str, object] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def time_left(self) -> bool:
        return time.monotonic() < self.until

    def held(self, fine: bool, what: str) -> bool:
        """Count a trial; `what` identifies it, so that it can be repeated."""
        self.tried += 1
        if not fine:
            self.broke.append(what)
            print(f"  broke: {what}", flush=True)
        return fine

    def line(self) -> str:
        seconds, held = time.monotonic() - self.began, self.tried - len(self.broke)
        counts = f"tried {self.tried:>6}  held {held:>6}  broke {len(self.broke):>4}  {seconds:6.0f} s"
        return f"{self.part:<12} {counts}" + "".join(f"  {name} {value}" for name, value in self.numbers.items())
