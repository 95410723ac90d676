"""kill -9 under load, restart, and how warm it is in the first second after."""

import time

from afterglow_e2e.process import poll

from . import plan

# Reads that the cache was never asked about; what else passes through says that we are not (yet)
# warm.
NOT_OURS = ("uncacheable_table",)


def reads(metrics):
    """(answered from the cache, all) so far."""
    passes = metrics.by("afterglow_passes_total", "reason")
    missed = metrics.misses() + sum(
        count for reason, count in passes.items() if reason not in NOT_OURS
    )
    return metrics.hits(), metrics.hits() + missed


def ratio(before, after):
    answered, total = after[0] - before[0], after[1] - before[1]
    return answered / total if total else 0.0


def wait_until(moment):
    time.sleep(max(0.0, moment - time.monotonic()))


def crash(stage, rate):
    """Reads at `rate` all the while; figures of what happened."""
    afterglow = stage.afterglow
    finish = stage.run(
        plan.THROUGH,
        "killed with -9 in the middle",
        "crash-through",
        *(
            "--rate",
            rate,
            "--warmup",
            "500ms",
            "--duration",
            f"{plan.CRASH_SECONDS}s",
            "--reconnect",
        ),
        watch=False,
        allowed=(0, 1),  # requests that were on their way when it died are lost
    )
    settled = (
        poll("reads to flow", lambda: reads(afterglow.metrics())[1] > 0, 10)
        and time.monotonic() + 1.5
    )
    wait_until(settled)
    before = reads(afterglow.metrics())
    wait_until(settled + 1)
    warm_before = ratio(before, reads(afterglow.metrics()))

    killed = time.monotonic()
    afterglow.kill()
    stage.start_afterglow()
    ready = time.monotonic()
    poll("the first hit", lambda: reads(afterglow.metrics())[0] > 0, 30, every=0.01)
    first_hit = time.monotonic()
    wait_until(ready + 1)
    one_second = reads(afterglow.metrics())
    wait_until(ready + 2)
    two_seconds = reads(afterglow.metrics())
    result = finish()
    return {
        "hit_ratio_before": warm_before,
        "hit_ratio_first_second": ratio((0, 0), one_second),
        "hit_ratio_next_second": ratio(one_second, two_seconds),
        "reads_in_first_second": one_second[1],
        "seconds_kill_to_ready": ready - killed,
        "seconds_kill_to_first_hit": first_hit - killed,
        "lost": result["errors"]["lost"],
        "wrong": result["errors"]["wrong"] + result["errors"]["not_found"],
    }
