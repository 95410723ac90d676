"""Runs the demo; see plan.py for its figures. Ends by itself, cleans up whatever happens."""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from afterglow_e2e.process import Failure, stop_pid

from . import plan, report
from .crash import crash
from .stage import OUT, Stage
from .verify import verify


def measure_pair(stage, pair, half):
    """One run of each side under each load; the sides change places from pair to pair."""
    sides = (plan.DIRECT, plan.THROUGH) if pair % 2 == 0 else (plan.THROUGH, plan.DIRECT)
    results = []
    for scenario in (plan.FLAT_OUT, plan.HALF):
        for side in sides:
            rate = ("--rate", f"{half(results):.0f}") if scenario == plan.HALF else ()
            name = f"pair{pair + 1}-{'half' if rate else 'flat'}-{'direct' if side == plan.DIRECT else 'through'}"
            timing = (
                "--warmup",
                "500ms",
                "--duration",
                f"{plan.MEASURE_SECONDS}s",
                "--seed",
                pair + 1,
            )
            result = stage.run(side, scenario, name, *timing, *rate)()
            results.append(result)
            stage.say(
                f"  pair {pair + 1}, {scenario:<27}  {side:<18}  {result['per_second']:>8,.0f} reads/s"
                f"   p99 {result['reads']['p99_us'] / 1000:6.2f} ms"
            )
    return results


def check_dram(stage):
    """The DRAM tier's size, which may be a fifth of the data at most."""
    size = stage.afterglow.metrics().value("afterglow_engine_dram_capacity_bytes")
    if not 0 < size <= plan.DATA_BYTES / 5:
        raise Failure(
            f"the DRAM tier has {size / 1e6:.0f} MB of {plan.DATA_BYTES / 1e6:.0f} MB of data: not a fair demo"
        )
    return size


def settings(stage, dram):
    servers, client = (
        ",".join(map(str, sorted(cpus))) for cpus in (stage.server_cpus, stage.client_cpus)
    )
    return [
        f"{plan.RECORDS:,} rows of {plan.FIELDS} columns of {plan.FIELD_BYTES} B ({plan.DATA_BYTES / 1e6:.0f} MB), "
        f"zipfian reads by key, LOCAL_QUORUM, {plan.CONNECTIONS * plan.IN_FLIGHT} in flight; "
        f"medians of {plan.PAIRS} runs of {plan.MEASURE_SECONDS} s, order alternated, every 64th answer verified.",
        f"Servers on CPU {servers}, load client on CPU {client}. Cassandra 5.0 with a heap of {plan.HEAP} and all data "
        f"in the page cache: its best case. Afterglow with {plan.MEMORY} of memory, of which {dram / 1e6:.0f} MB DRAM "
        f"tier ({100 * dram / plan.DATA_BYTES:.0f} % of the data), and {plan.FLASH} of flash read past the page cache.",
        f"Policy `{plan.POLICY}`: a promise that nobody writes these tables past Afterglow.",
    ]


def run(stage):
    stage.say("booting a stock Cassandra 5.0")
    stage.boot_cassandra()
    stage.say(
        f"Cassandra answers at {stage.cassandra.contact}; loading {plan.DATA_BYTES / 1e6:.0f} MB"
    )
    stage.load()
    stage.boot_afterglow()
    dram = check_dram(stage)
    stage.say(
        f"Afterglow answers at {stage.afterglow.contact}, policy {plan.POLICY}; warming both sides until flat"
    )
    stage.warm(plan.DIRECT)
    stage.pin_servers()
    stage.warm(plan.THROUGH)

    results = []

    def half(fresh):
        """Half of what Cassandra did flat out and directly in the first pair: one rate for all
        runs.
        """
        flat_out = (
            r
            for r in results + fresh
            if (r["scenario"], r["label"]) == (plan.FLAT_OUT, plan.DIRECT)
        )
        return round(next(flat_out)["per_second"] / 2)

    died = None
    stage.say(f"measuring {plan.PAIRS} pairs")
    for pair in range(plan.PAIRS):
        results += measure_pair(stage, pair, half)
        if pair == 0:
            stage.say("kill -9 in the middle of the load, and restart")
            died = crash(stage, round(half([])))
            for line in report.crash_lines(died):
                stage.say("  " + line)
    rows_checked = verify(stage.cassandra, stage.afterglow)
    stage.say(
        f"the Python driver read, wrote and read again {rows_checked} rows through Afterglow: all right"
    )

    rows, setting = report.summarise(results), settings(stage, dram)
    report.write(OUT, rows, died, setting)
    print("\n" + "\n".join(setting) + "\n\n" + report.table(rows) + "\n")
    for line in (*report.ratios(rows), *report.crash_lines(died)):
        print("  " + line)
    stage.plots()
    print(
        f"\nreports: {OUT}/report.md, report.json and, with plots, report.html; each run: {OUT}/pair*.json"
    )
    if died["wrong"]:
        raise Failure(f"{died['wrong']} reads around the kill were answered wrongly")


def stop():
    """End what KEEP=1 left running."""
    state = OUT / "running.json"
    if not state.exists():
        print("no demo was left running")
        return
    left = json.loads(state.read_text())
    for pid, folder in zip(left["pids"], reversed(left["folders"]), strict=True):
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and folder.encode() in command.read_bytes():
            stop_pid(pid)
    for folder in left["folders"]:
        shutil.rmtree(folder, ignore_errors=True)
    state.unlink()


def explain_kept(stage):
    print(f"""
Left running (make demo-stop ends it):
  CQL through Afterglow   {stage.afterglow.contact}   any driver, or: cqlsh {stage.afterglow.contact.replace(":", " ")}
  Cassandra directly      {stage.cassandra.contact}
  metrics                 http://127.0.0.1:{stage.afterglow.admin}/metrics
  kill it yourself        kill -9 {stage.afterglow.pid}
  and start it again      {shlex.join(map(str, stage.afterglow.command()))}
""")


def main():
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave Cassandra and Afterglow running at the end"
    )
    parser.add_argument("--stop", action="store_true", help="end what --keep left running")
    options = parser.parse_args()
    if options.stop:
        return stop()
    # `kill` cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Stage(options.keep) as stage:
            run(stage)
            if options.keep:
                stage.leave_running()
                explain_kept(stage)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is ended and removed", file=sys.stderr)
        return 130
    except (Failure, AssertionError, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
