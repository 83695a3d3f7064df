"""`python -m forebay`: the command of this Python's environment, whatever is on the path."""

import sys

from ._launch import main

sys.exit(main())
