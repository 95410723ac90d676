"""A real driver's opinion: rows read through Afterglow are the database's, before and after they
are written.
"""

import random

from afterglow_e2e.drivers import connect

from . import plan

SAMPLE = 300


def verify(cassandra, afterglow):
    """Compare rows read both ways, then write through Afterglow and read at once; the number of
    rows checked.
    """
    with connect(cassandra) as direct, connect(afterglow) as through:
        nodes = [host.endpoint.port for host in through.cluster.metadata.all_hosts()]
        assert nodes == [afterglow.port], (
            f"the driver should know Afterglow only, but knows ports {nodes}"
        )
        keys = [
            row.y_id for row in direct.execute(f"SELECT y_id FROM ycsb.usertable LIMIT {SAMPLE}")
        ]
        select = "SELECT * FROM ycsb.usertable WHERE y_id = ?"
        ask_direct, ask_through = direct.prepare(select), through.prepare(select)
        update = through.prepare("UPDATE ycsb.usertable SET field0 = ? WHERE y_id = ?")
        chance = random.Random(plan.RECORDS)
        for key in keys:
            for _ in range(2):
                ours, theirs = (
                    through.execute(ask_through, (key,)).one(),
                    direct.execute(ask_direct, (key,)).one(),
                )
                assert ours == theirs, f"row {key} differs through Afterglow"
            value = chance.randbytes(plan.FIELD_BYTES)
            through.execute(update, (value, key))
            for _ in range(2):
                assert through.execute(ask_through, (key,)).one().field0 == value, (
                    f"row {key} is older than its update"
                )
    return len(keys)
