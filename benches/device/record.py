"""What was found, kept after each step: whatever ends the script later takes nothing away."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from watch import watched

LEFT_OUT = "left out: no time"
MESSAGE_MAX = 1600

Found = dict[str, object]


@dataclass
class Record:
    """A file of results that grows."""

    path: Path
    about: Found
    # When nothing more begins, by `time.monotonic`.
    deadline: float
    steps: dict[str, Found] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def failed(self) -> list[str]:
        """The steps that did not end well."""
        return [name for name, found in self.steps.items() if "error" in found]

    def step(self, name: str, task: Callable[[], Found], needs_s: float = 1.0) -> Found:
        """Runs a step if there is time for it, and writes what it found, and what the device did meanwhile."""
        found: Found = {"note": LEFT_OUT}
        start = time.monotonic()
        if self.left >= needs_s:
            with watched() as seen:
                found = attempt(task)
            found["seconds"] = round(time.monotonic() - start, 2)
            found |= seen
        self.steps[name] = found
        self.write()
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        return found

    def write(self) -> None:
        """Replaces the file at once: whoever reads it finds the last whole one."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({**self.about, "steps": self.steps}, indent=1) + "\n")
        os.replace(partial, self.path)


def attempt(task: Callable[[], Found]) -> Found:
    """What a step found, or why it did not."""
    try:
        return dict(task())
    except subprocess.TimeoutExpired:
        return {"note": LEFT_OUT}
    except Exception as error:  # Whatever it is, the other steps go on, and it is written down.
        return {"error": f"{type(error).__name__}: {str(error)[-MESSAGE_MAX:]}"}
