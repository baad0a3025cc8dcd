"""`python -m fastq` is the `fastq` command."""

import sys

from fastq.cli import main

sys.exit(main())
