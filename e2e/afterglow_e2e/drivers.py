"""The DataStax Python driver, set up for tests: one contact point, quick reconnects, no retries
behind our back.
"""

from contextlib import contextmanager

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantReconnectionPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
)

from .process import poll


def cluster(
    server, version=5, auth=None, timeout=20, consistency=ConsistencyLevel.LOCAL_ONE, **options
):
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=consistency,
        request_timeout=timeout,
    )
    # Whoever speaks TLS says so; a test may give another context, or none.
    options.setdefault("ssl_context", getattr(server, "tls", None))
    return Cluster(
        [server.address],
        port=server.port,
        protocol_version=version,
        auth_provider=auth,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.1, max_attempts=None),
        connect_timeout=20,
        control_connection_timeout=20,
        **options,
    )


@contextmanager
def connect(server, **options):
    """A session at anything with `address` and `port`; closed at the end of the block."""
    opened = cluster(server, **options)
    try:
        yield opened.connect()
    finally:
        opened.shutdown()


def answer(session, statement, values=None, **options):
    """All a client can see of an answer: column names, types and rows; or the error."""
    try:
        result = session.execute(statement, values, **options)
    except Exception as error:  # whatever the driver makes of it is what is compared
        return type(error).__name__, str(error)
    return (
        result.column_names,
        [str(kind) for kind in result.column_types or []],
        [tuple(row) for row in result],
    )


REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


def await_caching(instance, seconds=60, version=5):
    """Wait until the instance holds its lease, seen by what matters: a row read twice is a hit."""
    with connect(instance, version=version) as session:
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS probe WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE IF NOT EXISTS probe.probe (k int PRIMARY KEY)")

        def hits():
            before = instance.metrics().hits()
            session.execute("SELECT k FROM probe.probe WHERE k = 1")
            return instance.metrics().hits() > before

        poll(
            "a row read again and again to become a hit", hits, seconds, check=instance.child.check
        )
