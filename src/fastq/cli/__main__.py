"""`python -m fastq.cli` is the `fastq` command, and so is `python -m fastq`."""

import sys

from fastq.cli import main

sys.exit(main())
