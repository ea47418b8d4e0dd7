"""``python -m zoo.cli``, the same as the command ``zoo``."""

from zoo.cli import main

raise SystemExit(main())
