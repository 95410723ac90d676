"""Shows that the simulation bites: makes deliberate mistakes in a copy of the tree and has each
found.

Prints a line for each mistake of mutants.toml, with the seed that found it. What no seed finds must
be found by a scenario, or by a kept run that once failed.

A mistake with `models = true` is one of order between threads. The models find it: tests that go
through every interleaving of two threads.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "target/mutants/tree"
BUILD = ROOT / "target/mutants/build"
MODELS_BUILD = ROOT / "target/mutants/models"
MODELS = "loom_tests"
# The crates that have a simulation, with its test and how many seeds must pass without a mistake.
SIMULATIONS = {
    "engine": ("sim::no_seed_returns_a_stale_or_wrong_value_or_forgets_what_it_must_keep", 2_500),
    "ring": ("sim::no_seed_reads_what_is_stale_or_stops_serving", 300),
    "server": (
        "frontend::cql::cached::ring::sim::no_seed_reads_what_is_stale_through_any_instance",
        100,
    ),
}
# That of the server is of the ring over the row cache: of mistakes in the server, or in the row
# cache, it is to find those that name how many seeds.
ALWAYS_SIMULATED = {"engine", "ring"}
HISTORIES = {
    "engine": [
        "sim::admission",
        "sim::durable",
        "sim::scenarios",
        "sim::copies",
        "sim::devices",
        "sim::growth",
        "sim::hangs",
        "sim::kill_log",
        "sim::openings",
        "sim::parted",
        "sim::reinsertion",
        "sim::relief",
        "sim::what_once_failed",
        "journal::tests",
        "close::tests",
        "cache::tests::a_start_short",
        "device::buf::tests",
        "device::error::tests",
        "balance::tests",
        "device_work::tests",
        "format::checkpoint_tests",
        "kill_run::tests",
        "record::tests",
        "search::tests",
        "tier::tests",
        "tier::trial_tests",
        "time::tests",
    ],
    "rowcache": [
        "doubts_tests",
        "intents::table::tests",
        "remade_tests",
        "claims::tests",
        "instance_file::tests",
        "noted_tables::tests",
        "refresh::tests",
        "amend::tests",
        "row::tests",
        "row_change::tests",
        "unit::tests",
        "write_in_flight::tests",
        "write_scope::tests",
    ],
    "cql": [
        "parser::tests",
        "plan::reason::tests",
        "plan::schema::tests",
        "plan::tests::long",
        "system::tests",
    ],
    "ffi": ["reads::tests"],
    "memcache": ["tests::units"],
    "ring": [
        "gates::tests",
        "dirty::tests",
        "drift::tests",
        "lease::tests",
        "link::tests",
        "map::tests",
        "placement::tests",
        "packed::tests",
        "permit::tests",
        "promise::tests",
        "join::tests",
        "custody::tests",
        "custody::moves::tests",
        "member::clock::tests",
        "member::judge::tests",
        "member::hand_over::tests",
        "member::receive::tests",
        "member::report::tests",
        "member::settings_tests",
        "patience::tests",
        "settings::tests",
        "sight::tests",
        "takeover::tests",
        "wire::tests",
        "write::tests",
    ],
    "server": [
        "cql::cached::fill::tests",
        "cql::cached::fill_result::tests",
        "cql::cached::in_vain::tests",
        "cql::cached::outcome::tests",
        "cql::cached::ring::clocks::tests",
        "cql::cached::ring::foreigners::tests",
        "cql::cached::ring::kept::tests",
        "cql::cached::ring::lasting::tests",
        "cql::cached::ring::rows::tests",
        "cql::cached::ring::sending::tests",
        "cql::cached::ring::serve::tests",
        "cql::cached::ring::unconfirmed::tests",
        "cql::cached::heard_schema::tests",
        "cql::cached::router::tests",
        "cql::cached::schema_change::tests",
        "cql::cached::unheard::tests",
        "cql::client::budget::tests",
        "cql::cluster::idle_users::tests",
        "cql::cluster::login::tests",
        "cql::cluster::schema::tests",
        "cql::cluster::schema_store::tests",
        "cql::refusals::tests",
        "cql::statements::prepared::tests",
        "memcache::answers::tests",
        "memcache::blocking_turns::tests",
        "memcache::budget::tests",
        "memcache::head::tests",
        "memcache::line::tests",
        "memcache::parts::tests",
        "memcache::room_model",
        "memcache::tests::ahead",
        "memcache::tests::changes",
        "memcache::tests::clocks",
        "memcache::tests::hanging",
        "memcache::tests::hold_ups",
        "memcache::tests::large",
        "memcache::tests::rejoin",
        "memcache::tests::room",
        "reactor::tests::a_read_waits",
        "reactor::tests::reads_of_a_device",
        "reactor::tests::without_a_ring",
        "reactor::tests::who_yields",
        "ring_link::crowd::tests",
        "ring_link::tests::lanes",
        "metrics::ring::tests",
        "operator::tests",
    ],
}
# Packages that are not called as the folder of their crate.
PACKAGES = {"server": "afterglow"}
SEEDS = 20_000
# So many seeds come before the tests.
FIRST_SEEDS = 1_000
TIMEOUT = 900


SWITCH = """
/// Whose turn it is of the deliberate mistakes in this copy.
fn mutant(number: u32) -> bool {
    static TURN: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("AFTERGLOW_MUTANT").map_or(0, |n| n.parse().expect("a number")));
    *TURN == number
}
"""


def crate_of(mutant):
    """The crate that a mistake is made in."""
    return mutant.get("crate", "engine")


def finder_of(mutant):
    """The crate whose simulation and tests are to find a mistake."""
    return mutant.get("by", crate_of(mutant))


def seeds_of(crate):
    """How many seeds are to find a mistake that does not say it; 1 for none."""
    return SEEDS if crate in ALWAYS_SIMULATED else 1


def is_of_models(mutant):
    """Whether the models are to find a mistake."""
    return mutant.get("models", False)


def mutate(mutants):
    """The texts of all files with all mistakes in them, each behind its own switch."""
    texts = {}
    for number, mutant in enumerate(mutants, 1):
        if crate_of(mutant) not in HISTORIES:
            sys.exit(f"{mutant['name']}: no test is named in HISTORIES for {crate_of(mutant)}")
        path = f"crates/{crate_of(mutant)}/src/{mutant['file']}"
        text = texts.get(path) or (ROOT / path).read_text()
        if (found := text.count(mutant["old"])) != 1:
            sys.exit(
                f"{mutant['name']}: what {mutant['file']} is to say differently is in it {found} times, not once"
            )
        texts[path] = text.replace(
            mutant["old"], mutant["new"].replace("{on}", f"crate::mutant({number})")
        )
    for root in [f"crates/{crate}/src/lib.rs" for crate in HISTORIES]:
        texts[root] = (ROOT / root).read_text() + SWITCH
    return texts


def copy_tree(texts):
    """Brings the copy up to date, leaving files that are the same alone: what was built of them
    stays good. A file that was moved must not be there twice.
    """
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for old in TREE.glob("crates/**/*.rs"):
        if not (ROOT / old.relative_to(TREE)).is_file():
            old.unlink()
    for name in filter(None, files):
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        content = texts[name].encode() if name in texts else source.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def build(crates, models=False):
    """Builds the copy's tests, or its models; the binary of each crate, or None and what the
    compiler said.
    """
    command = "cargo test --locked --profile soak --lib --no-run --message-format=json".split()
    command += [f"-p{PACKAGES.get(crate, f'afterglow-{crate}')}" for crate in crates]
    env = os.environ | {"CARGO_TARGET_DIR": str(MODELS_BUILD if models else BUILD)}
    if models:
        env["RUSTFLAGS"] = "--cfg loom"
    result = subprocess.run(command, cwd=TREE, env=env, capture_output=True, text=True)
    if result.returncode:
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        errors = [
            m["message"]["rendered"] for m in lines if m.get("message", {}).get("level") == "error"
        ]
        return None, "\n".join(errors) or result.stderr
    built = [json.loads(line) for line in result.stdout.splitlines()]
    executables = {b["target"]["name"]: b["executable"] for b in built if b.get("executable")}
    named = {crate: PACKAGES.get(crate, f"afterglow-{crate}").replace("-", "_") for crate in crates}
    return {crate: executables[name] for crate, name in named.items()}, None


def simulate(binary, test, number, seeds, of=(0, 1)):
    """Runs the simulation with one of the mistakes, 0 for none, on `seeds` seeds of one kind: from
    the first number of `of` on, each so many. The seed that failed and with what, or None and why
    none did.
    """
    limits = {"AFTERGLOW_SIM_SEEDS": str(seeds), "AFTERGLOW_SIM_SHRINK": "0", "RUST_BACKTRACE": "0"}
    limits |= {"AFTERGLOW_SIM_FROM": str(of[0]), "AFTERGLOW_SIM_STEP": str(of[1])}
    env = os.environ | {"AFTERGLOW_MUTANT": str(number)} | limits
    command = [binary, "--exact", test, "--nocapture"]
    try:
        output = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, f"no seed failed in {TIMEOUT} s"
    found = re.search(r"^seed (\d+) failed: (.*)\n(.*)$", output.stderr, re.MULTILINE)
    if found:
        where = re.sub(r"^panicked at \S*?([\w/]+\.rs:\d+).*", r"\1", found[2])
        return int(found[1]), f"{where} {found[3]}"[:110]
    if output.returncode:
        # Whoever stopped it, it was no seed: that proves nothing.
        last = output.stderr.strip().splitlines()[-1:] or ["nothing said"]
        return None, f"the simulation ended with {output.returncode}: {last[0]}"
    return None, None


def replay(binary, histories, number):
    """Runs what the simulation tells step by step, and the runs that once failed; the first that
    fails, or None. One that never ends finds nothing, and hides nothing that failed before it.
    """
    env = os.environ | {"AFTERGLOW_MUTANT": str(number), "RUST_BACKTRACE": "0"}
    command = [binary, *histories, "--test-threads=2"]
    # In the copy: property tests keep what failed beside their sources.
    try:
        told = subprocess.run(
            command, cwd=TREE, env=env, capture_output=True, text=True, timeout=TIMEOUT
        ).stdout
    except subprocess.TimeoutExpired as late:
        told = (late.stdout or b"").decode()
    if trace := re.search(r"regressions/(\S+) fails again", told):
        return "the kept run", trace[1]
    failed = re.search(r"^test (\S+) \.\.\. FAILED$", told, re.MULTILINE)
    return ("the history", failed[1]) if failed else (None, None)


def check_histories(binary, crate):
    """Ends the run if a history has no test: it would find nothing, and nobody would know."""
    told = subprocess.check_output([binary, "--list"], text=True)
    if missing := [name for name in HISTORIES[crate] if name not in told]:
        sys.exit(f"{crate} has no tests in {', '.join(missing)}")


def check_models(binary, number):
    """The model that finds a mistake, or None."""
    env = os.environ | {"AFTERGLOW_MUTANT": str(number), "RUST_BACKTRACE": "0"}
    output = subprocess.run(
        [binary, MODELS], env=env, capture_output=True, text=True, timeout=TIMEOUT
    )
    failed = re.search(r"^test (\S+) \.\.\. FAILED$", output.stdout, re.MULTILINE)
    return failed and f"the model {failed[1]}"


def find(binaries, models, mutant, number, seeds):
    """What finds a mistake, in words; None when nothing does. Most are found by one of the first
    seeds. The tests take seconds, so they come before the other seeds.
    """
    crate = finder_of(mutant)
    if is_of_models(mutant):
        return check_models(models[crate], number)
    # One seed says that no seed is known to find it.
    seeds = 0 if seeds == 1 else seeds
    first = min(seeds, FIRST_SEEDS)
    return (
        by_a_seed(binaries, crate, mutant, number, (0, first))
        or by_a_history(binaries, crate, mutant, number)
        or by_a_seed(binaries, crate, mutant, number, (first, seeds - first))
    )


def by_a_seed(binaries, crate, mutant, number, part):
    """The seed that finds a mistake, of so many from that one on; None where none does."""
    after, seeds = part
    if crate not in SIMULATIONS or not seeds:
        return None
    test, (start, step) = SIMULATIONS[crate][0], mutant.get("of", (0, 1))
    of = (start + after * step, step)
    seed, message = simulate(binaries[crate], test, number, seeds, of)
    if seed is not None:
        if simulate(binaries[crate], test, 0, 1, (seed, 1))[0] is not None:
            sys.exit(f"{crate} itself fails at seed {seed}, without: {mutant['name']}")
        return f"seed {seed:>6}: {message}"
    if message:
        print(f"  {message}", flush=True)
    return None


def by_a_history(binaries, crate, mutant, number):
    """The test or the kept run that finds a mistake, or None."""
    what, name = replay(binaries[crate], HISTORIES[crate], number)
    if what and replay(binaries[crate], [name], 0)[0]:
        sys.exit(f"{crate} itself fails in {name}, without: {mutant['name']}")
    return what and f"{what} {name}"


def build_models(crates):
    """Builds the models of crates, which must find nothing where nothing is wrong."""
    models, errors = build(crates, models=True) if crates else ({}, None)
    if errors:
        sys.exit(errors)
    for crate, binary in models.items():
        if failed := check_models(binary, 0):
            sys.exit(f"{crate} itself fails in {failed}")
    return models


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="?", default="", help="only those whose name has it")
    only = "only those of one crate; its simulation alone is built"
    parser.add_argument("--crate", choices=list(HISTORIES), help=only)
    parser.add_argument("--check", action="store_true", help="only whether each can still be made")
    options = parser.parse_args(arguments)
    if options.check and (options.text or options.crate):
        parser.error("--check looks at all of them: leave the text and --crate out")
    return options


def main(arguments):
    options = parse(arguments)
    mutants = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    texts = mutate(mutants)
    if options.check:
        print(f"{len(mutants)} mutants can be made")
        return
    crates = [options.crate] if options.crate else list(HISTORIES)
    wanted = [
        (number, mutant)
        for number, mutant in enumerate(mutants, 1)
        if crate_of(mutant) in crates and options.text in mutant["name"]
    ]
    if not wanted:
        sys.exit(f"no mistake of {', '.join(crates)} has {options.text!r} in its name")
    crates = sorted({finder_of(mutant) for _, mutant in wanted} | set(crates))
    copy_tree(texts)
    binaries, errors = build(crates)
    if errors:
        sys.exit(errors)
    for crate, binary in binaries.items():
        check_histories(binary, crate)
    for crate in set(crates) & set(SIMULATIONS):
        test, seeds = SIMULATIONS[crate]
        seed, message = simulate(binaries[crate], test, 0, seeds)
        if seed is not None or message:
            sys.exit(f"{crate} itself fails at seed {seed}: {message}")
    models = build_models({crate_of(mutant) for _, mutant in wanted if is_of_models(mutant)})
    found = tried = 0
    for number, mutant in wanted:
        began, seeds = time.monotonic(), mutant.get("seeds", seeds_of(finder_of(mutant)))
        outcome = find(binaries, models, mutant, number, seeds)
        line = outcome or f"NOT FOUND in {seeds} seeds, nor by any history"
        print(f"{mutant['name']:<76} {line} ({time.monotonic() - began:.0f} s)", flush=True)
        tried, found = tried + 1, found + bool(outcome)
    print(f"{found} of {tried} found")
    sys.exit(0 if found == tried else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
