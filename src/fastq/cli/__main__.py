"""`python -m fastq.cli` is the `fastq` command."""

import sys

from fastq.cli.main import main

sys.exit(main())
