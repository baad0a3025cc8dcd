"""Records the logs of this folder: real servers, started on loopback, written to under a short load, then stopped.

Needs nginx and PostgreSQL (Debian's packages), Java with Maven (Apache Kafka), and a Python with PySpark:

    python examples/data/record_logs.py --spark-python /path/to/python-with-pyspark

Rules: every server gets a directory of its own below a temporary one and is ended by its process id; a load is
bounded in requests; nothing listens beyond 127.0.0.1. The files are stored with gzip and without a time stamp, so
that recording the same lines gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))

from apache_kafka import LOG4J2, ApacheKafka, class_path, free_port, run_tool  # noqa: E402

PATHS = [
    "/",
    "/index.html",
    "/cart",
    "/search?q={}",
    "/item/{}",
    "/static/app-{}.js",
    "/login",
    "/api/v1/orders/{}",
    "/old/{}",
]
AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64)",
    "curl/7.88.1",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_1)",
    "kube-probe/1.31",
]

NGINX = """
worker_processes 2;
pid {home}/nginx.pid;
error_log {home}/error.log info;
events {{ worker_connections 256; }}
http {{
  access_log {home}/access.log combined;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  limit_req_zone $binary_remote_addr zone=searches:1m rate=400r/s;
  server {{
    listen 127.0.0.1:{port};
    root {home}/www;
    location /cart {{ return 302 /login; }}
    location /login {{ return 200 "ok"; }}
    location /search {{ limit_req zone=searches burst=5 nodelay; return 200 "found"; }}
    location /api/ {{ proxy_pass http://127.0.0.1:{dead_port}; }}
  }}
}}
"""

SPARK_JOB = """
import random, sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").appName("orders").config("spark.ui.enabled", "false") \\
    .config("spark.ui.showConsoleProgress", "false") \\
    .config("spark.sql.shuffle.partitions", "4").config("spark.driver.host", "127.0.0.1") \\
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
rng = random.Random(7)
for turn in range(int(sys.argv[1])):
    orders = spark.range(2000, numPartitions=3).select(
        (F.col("id") % rng.randint(3, 40)).alias("shop"), (F.rand(turn) * 100).alias("price"))
    orders.groupBy("shop").agg(F.sum("price"), F.count("*")).orderBy("shop").collect()
    if turn % 7 == 0:
        try:
            spark.sparkContext.parallelize(range(4), 2).map(lambda n: 1 // (n - 2)).collect()
        except Exception as error:
            print("expected:", type(error).__name__, file=sys.stderr)
    if turn % 5 == 0:
        cached = orders.cache(); cached.count(); cached.unpersist()
spark.stop()
"""


SPARK_LOG4J2 = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# named, because the Python shell's own threshold holds back what only the root logger lets through
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


def record_nginx(home: Path, requests: int) -> dict[str, Path]:
    port, dead_port = free_port(), free_port()
    home.chmod(0o755)  # nginx's workers run as another user
    (home / "www").mkdir()
    (home / "www" / "index.html").write_text("<h1>shop</h1>")
    (home / "nginx.conf").write_text(NGINX.format(home=home, port=port, dead_port=dead_port))
    process = subprocess.Popen(
        ["nginx", "-c", str(home / "nginx.conf"), "-g", "daemon off;"], stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        rng = random.Random(11)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(requests):
            path = rng.choice(PATHS).format(int(rng.paretovariate(0.8)) % 100_000)
            connection.request(
                rng.choice(["GET", "GET", "GET", "HEAD"]), path, headers={"User-Agent": rng.choice(AGENTS)}
            )
            connection.getresponse().read()
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
    return {"nginx-access.log": home / "access.log", "nginx-error.log": home / "error.log"}


def record_postgresql(home: Path, transactions: int) -> dict[str, Path]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(home, "postgres", "postgres")
    port = free_port()

    def run(program: str, *words: str) -> None:
        command = [*as_user, str(programs / program), *words]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    data = home / "data"
    run("initdb", "-D", str(data), "-A", "trust", "-U", "postgres")
    log = home / "postgresql.log"
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "log_checkpoints": "on",
        "log_connections": "on",
        "log_disconnections": "on",
        "log_lock_waits": "on",
        "log_min_duration_statement": 3,
        "log_autovacuum_min_duration": 0,
        "checkpoint_timeout": "30s",
        "log_temp_files": 0,
        "deadlock_timeout": "10ms",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *as_user,
                str(programs / "postgres"),
                "-D",
                str(data),
                *(w for k, v in settings.items() for w in ("-c", f"{k}={v}")),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        time.sleep(3)
        here = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
        run("pgbench", "-i", "-s", "2", *here, "postgres")
        run("pgbench", "-c", "6", "-t", str(transactions), "-C", *here, "postgres")
        for number in range(400):
            run("psql", *here, "-c", f"SELECT * FROM order_lines_{number % 9} WHERE id = {number}", "postgres")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return {"postgresql.log": log}


def record_kafka(home: Path, topics: int) -> dict[str, Path]:
    kafka = ApacheKafka(
        home / "data", properties={"log.segment.bytes": "1048576", "log.retention.check.interval.ms": "2000"}
    )
    import apache_kafka

    apache_kafka.LOG4J2 = LOG4J2.replace("level: WARN", "level: INFO").replace("%d %p %m (%c)%n", "[%d] %p %m (%c)%n")
    with kafka:
        servers = kafka.bootstrap_servers
        for number in range(topics):
            name = f"orders-{number}"
            run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", servers, "--create", "--topic", name,
                     "--partitions", str(4 + number * 3), "--config", "retention.bytes=1048576")  # fmt: skip
            run_tool("org.apache.kafka.tools.ProducerPerformance", "--topic", name, "--num-records", "200000", "--record-size",
                     "200", "--throughput", "-1", "--bootstrap-server", servers)  # fmt: skip
            run_tool("org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", servers, "--topic", name,
                     "--num-records", "100000", "--group", f"billing-{number % 3}", check=False)  # fmt: skip
        for number in range(0, topics, 2):
            run_tool(
                "org.apache.kafka.tools.TopicCommand",
                "--bootstrap-server",
                servers,
                "--delete",
                "--topic",
                f"orders-{number}",
            )
        kafka.stop()
        log = home / "kafka.log"
        log.write_text(kafka.log_text())
    return {"kafka.log": log}


def record_spark(home: Path, python: str, turns: int) -> dict[str, Path]:
    job = home / "job.py"
    job.write_text(SPARK_JOB)
    (home / "log4j2.properties").write_text(SPARK_LOG4J2)
    environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_CONF_DIR": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = home / "spark.log"
    with log.open("wb") as output:
        subprocess.run([python, str(job), str(turns)], stderr=output, check=True, env=environment)
    return {"spark.log": log}


def store(name: str, path: Path) -> None:
    data = path.read_bytes()
    with (HERE / f"{name}.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(data)
    print(f"{name}: {data.count(10):,} lines, {len(data):,} bytes, {(HERE / f'{name}.gz').stat().st_size:,} stored")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the example logs from servers under load.")
    parser.add_argument("--spark-python", required=True, help="a Python that has PySpark")
    parser.add_argument("--only", choices=["nginx", "postgresql", "kafka", "spark"], action="append")
    options = parser.parse_args()
    class_path()
    recorders: dict[str, Callable[[Path], dict[str, Path]]] = {
        "nginx": lambda home: record_nginx(home, 40_000),
        "postgresql": lambda home: record_postgresql(home, 700),
        "kafka": lambda home: record_kafka(home, 8),
        "spark": lambda home: record_spark(home, options.spark_python, 260),
    }
    for server in options.only or recorders:
        with tempfile.TemporaryDirectory(prefix=f"record-{server}-") as folder:
            for name, path in recorders[server](Path(folder)).items():
                store(name, path)


if __name__ == "__main__":
    main()
