"""``python -m aenv.cli``: the same as the ``aenv`` command."""

import sys

from aenv.cli.main import main

sys.exit(main())
