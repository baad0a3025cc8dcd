"""The inside of a session of `spark_jvm.py`: `python spark_server.py SCRIPTS SETTINGS`, requests on stdin, answers on stdout.

Rules: a request and an answer are a line of JSON each; whatever else writes to stdout is sent to stderr. Runs with each
PySpark and imports nothing but it. The end of stdin ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def start(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("fastq-peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    spark = start(json.loads(sys.argv[2]))
    scripts = importlib.import_module(Path(sys.argv[1]).stem)  # from PYTHONPATH
    answer(number=0, result=spark.version)
    for line in sys.stdin:
        request = json.loads(line)
        number = request["number"]
        try:
            answer(number=number, result=getattr(scripts, request["call"])(spark, **request["arguments"]))
        except Exception:
            answer(number=number, error=traceback.format_exc())
    spark.stop()


if __name__ == "__main__":
    main()
