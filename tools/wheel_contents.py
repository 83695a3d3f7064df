"""What the wheel holds beside the Python package; hatchling runs it. `tools/wheel` makes the files."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The oldest C library that the executable runs with, as auditwheel finds too.
TAG = "py3-none-manylinux_2_34_x86_64"
STAGED = "target/wheel"
FILES = ("bin/forebay", "lib/libforebay_torch.so")


class Contents(BuildHookInterface):
    """Adds the compiled files, and names the platform that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are collected."""
        build_data["pure_python"] = False
        build_data["tag"] = TAG
        for name in FILES:
            path = Path(self.root, STAGED, name)
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing; `make wheel` makes it")
            build_data["force_include"][str(path)] = f"forebay/{name}"
