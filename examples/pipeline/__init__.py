"""The pipeline: lines of logs, or events of flights, through a broker into three jobs that read them independently.

    PYTHONPATH=examples python -m pipeline      # `make pipeline` and `make pipeline-flights` set up what it needs

Rules: the modules here know a workload only by its interface (`workload.py`); what is particular to log lines or to flights
is in `lines.py` and `flights.py`. A job is a process of its own and keeps all that it must remember in its checkpoint, in the
brokers and beside its data, so that it can be killed and started again at any moment.
"""
