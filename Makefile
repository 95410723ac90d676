# Each target is a line or two; the work is in tools/, e2e/ and crates/.
.PHONY: bench-cassandra bench-cql bench-engine cassandra-jar row-race row-kill row-repair \
  row-stream chunk-verify demo demo-ring demo-stop test unit e2e differential history lint \
  killtest soak ring-soak instances-soak ring-mutants mutants fuzz models sanitize build release \
  tools
export PYTHONPATH := e2e
MODELS := RUSTFLAGS="--cfg loom" cargo test --locked -p afterglow-engine --lib \
  --target-dir target/models

# Stock Cassandra, 400 MB of rows, the same reads directly and through Afterglow; KEEP=1 leaves both
# running.
demo: tools release
	.venv/bin/python -m demo $(if $(KEEP),--keep)

# A stock Cassandra, two instances as one cache, drivers in Python, Java and Go while an instance is
# killed, stands still, is cut off, leaves and returns; report in target/ring.
demo-ring: tools release
	.venv/bin/python -m ring

# An owner of a ring of three is killed with -9 under load, KILLS times, and comes back.
.PHONY: ring-failovers
ring-failovers: tools release
	.venv/bin/python -m ring.failover --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

# A fourth instance joins a ring of three under load: what moves, and how far the hit ratio dips.
.PHONY: ring-growth
ring-growth: tools release
	.venv/bin/python -m ring.growth

# What a write costs through an instance that does not own its row: PAIRS of runs.
.PHONY: ring-write-cost
ring-write-cost: tools release
	.venv/bin/python -m ring.writecost --pairs $(or $(PAIRS),11)

# How much of what it had cached a member serves that is killed and comes back at once.
.PHONY: ring-restart
ring-restart: tools release
	.venv/bin/python -m ring.restart --kills $(or $(KILLS),9)

# Four instances, each held to a part of a core or of its device, beside four alone; as
# root, for control groups.
.PHONY: ring-scaling
ring-scaling: tools release
	.venv/bin/python -m ring.scaling

# Release 0.1 is replaced by a ring under load, then each member is restarted. OLD= is its program;
# without it that is built, which takes some minutes once.
.PHONY: ring-upgrade
ring-upgrade: tools release
	.venv/bin/python -m ring.upgrade $(if $(OLD),--old $(OLD))

# Which part of its reads each driver sends to the owner, after each change of a ring of three.
.PHONY: ring-drivers
ring-drivers: tools release build
	.venv/bin/python -m ring.drivers

demo-stop:
	.venv/bin/python -m demo --stop

test: unit models e2e

# Most tests wait for something: more at a time than there are cores, of two programs at a time.
unit:
	RUST_TEST_THREADS=$(or $(RUST_TEST_THREADS),4) python3 tools/unit_tests.py

# What is fetched or built is made ready first: no test's time pays for it. Tests mostly wait, so
# two files run at a time, each with a database of its own; LANES=1 is one after the other.
e2e: tools build
	.venv/bin/python -m afterglow_e2e.prepare
	.venv/bin/pytest --numprocesses $(or $(LANES),2) --dist loadfile --no-loadscope-reorder

# The end-to-end tests that take a minute or more, where shorter ones show most of it.
.PHONY: e2e-long
e2e-long: tools build
	.venv/bin/python -m afterglow_e2e.prepare
	.venv/bin/pytest -m long --numprocesses $(or $(LANES),2) --dist loadfile --no-loadscope-reorder

# Random statements to a real Cassandra, directly and through Afterglow, answers compared byte for
# byte; CASSANDRA=5.0, 4.1 or 3.11, SEED= for a known run.
differential: tools release
	.venv/bin/python -m differential --statements $(or $(STATEMENTS),100000) \
	  --release $(or $(CASSANDRA),5.0) $(if $(SEED),--seed $(SEED))

# Clients, faults and a judgement over all that was read and written: RUNS= of a minute each,
# NODES=1 or 3; RING=2 to 4 instances as one cache; PORCUPINE=1 has porcupine judge them too. It
# also fails below sums such as AT_LEAST=reads=1000000,minutes=20.
history: tools release
	.venv/bin/python -m histories --runs $(or $(RUNS),20) $(if $(RING),--ring $(RING)) \
	  --nodes $(or $(NODES),1) $(if $(SEED),--seed $(SEED)) $(if $(PORCUPINE),--porcupine) \
	  $(if $(AT_LEAST),--at-least $(AT_LEAST))

# The same for a ring whose clocks drift apart, by a build that asks libc for the time. BEYOND=1:
# one of them by more than is allowed.
.PHONY: history-drift
history-drift: tools release
	cargo build --locked --release -p afterglow -p afterglow-testkit \
	  --features afterglow/test-clock --target-dir target/test-clock
	.venv/bin/python -m histories --runs $(or $(RUNS),4) --ring $(or $(RING),4) --drift \
	  $(if $(BEYOND),--beyond) $(if $(AT_LEAST),--at-least $(AT_LEAST)) \
	  --nodes $(or $(NODES),3) $(if $(SEED),--seed $(SEED)) --profile test-clock/release

lint: tools
	tools/lint

# The real binary on real files, killed with -9 in many ways. Every read is judged, and what a
# restart kept is counted. ROUNDS=300 is the long form.
killtest: release
	target/release/afterglow-testkit killtest --afterglow target/release/afterglow \
	  --rounds $(or $(ROUNDS),20) --life-max 6s

# The engine simulated: so many seeds from FROM on, with all debug assertions. A seed that fails is
# shortened and kept in target/sim.
soak:
	@mkdir -p target/sim
	AFTERGLOW_SIM_OUT=$(CURDIR)/target/sim AFTERGLOW_SIM_SEEDS=$(or $(SEEDS),100000) \
	  AFTERGLOW_SIM_FROM=$(or $(FROM),0) \
	  cargo test --locked --profile campaign -p afterglow-engine --lib -- --nocapture --exact \
	  sim::no_seed_returns_a_stale_or_wrong_value_or_forgets_what_it_must_keep

# The ring simulated: so many seeds from FROM on, each STEP-th. FROM=383 STEP=384 has rings of 8 to
# 30 members and each 32nd time one of 200; FROM=12287 STEP=12288 has those of 200 alone.
ring-soak:
	AFTERGLOW_SIM_SEEDS=$(or $(SEEDS),10000) AFTERGLOW_SIM_FROM=$(or $(FROM),0) \
	  AFTERGLOW_SIM_STEP=$(or $(STEP),1) \
	  cargo test --locked --profile campaign -p afterglow-ring --lib -- --nocapture --exact \
	  sim::no_seed_reads_what_is_stale_or_stops_serving

# Whole instances simulated, the ring over its caches of rows: so many seeds from FROM on.
instances-soak:
	AFTERGLOW_SIM_SEEDS=$(or $(SEEDS),10000) AFTERGLOW_SIM_FROM=$(or $(FROM),0) \
	  cargo test --locked --profile soak -p afterglow --lib -- --nocapture --exact \
	  frontend::cql::cached::ring::sim::no_seed_reads_what_is_stale_through_any_instance

# Deliberate mistakes in the engine, each of which the simulation must find; NAME= picks some. Some
# minutes.
mutants: tools
	.venv/bin/python tools/mutants/run.py "$(NAME)"

# Those of the ring alone.
ring-mutants: tools
	.venv/bin/python tools/mutants/run.py --crate ring "$(NAME)"

# The index, the journal, and what publishes places on flash, under loom: every interleaving, within
# bounds.
models:
	$(MODELS) loom_tests

# Miri, AddressSanitizer and ThreadSanitizer (nightly) over what is unsafe or shared; MODE=miri,
# address or thread for one.
sanitize:
	tools/sanitize $(MODE)

# libFuzzer (nightly): every target of crates/fuzz, or TARGET=name, for TIME seconds each.
fuzz:
	tools/fuzz $(or $(TIME),60) $(TARGET)

# With the tests: so the libraries are those that the unit tests are built with, and nothing is
# built twice.
build: rust-driver
	cargo build --locked --workspace --lib --bins --tests

.PHONY: rust-driver
rust-driver:
	cargo build --locked --manifest-path e2e/rust-driver/Cargo.toml --target-dir target/rust-driver

# What the models and the end-to-end tests need besides, on what the unit tests leave of the cores.
# That of the build waits until the unit tests are built.
.PHONY: ahead
ahead: tools rust-driver
	$(MODELS) --no-run
	$(MAKE) build
	.venv/bin/python -m afterglow_e2e.prepare

# The plug-in for stock Cassandra, with the native library of this machine inside and its unit tests
# run: docs/guide/inside-cassandra.md.
cassandra-jar:
	cargo build --locked --release -p afterglow-ffi
	mvn -q -B -f cassandra/pom.xml package
	@ls -l cassandra/target/afterglow-cassandra.jar

# A read that fills the row cache against a write, ROUNDS times; then the same with Cassandra's
# default row cache. Prints what each left stale.
row-race: tools build
	.venv/bin/python -m afterglow_e2e.rowrace --rounds $(or $(ROUNDS),10000) --stock

# A node with the row cache killed and stopped under load, ROUNDS times, every row compared with the
# database after each start.
row-kill: tools build
	.venv/bin/python -m afterglow_e2e.rowkill --rounds $(or $(ROUNDS),50)

# A node with both caches misses writes and is repaired by another: rows that were cached before
# must not be served.
row-repair: tools build
	.venv/bin/python -m afterglow_e2e.repaircheck

# The same with whole SSTables copied from the other node, as a new or rebuilt one gets them.
row-stream: tools build
	.venv/bin/python -m afterglow_e2e.repaircheck --rebuild

# Chunk reads compared with their SSTables while those come and go: READS of them, in ROUNDS with a
# kill -9 in between.
chunk-verify: tools build
	.venv/bin/python -m afterglow_e2e.chunkverify --reads $(or $(READS),200000) \
	  --rounds $(or $(ROUNDS),4) --cassandra $(or $(CASSANDRA),5.0.5) $(if $(COMPRESS),--compress)

release:
	cargo build --locked --release --workspace --bins

# A Debian package with man pages, completions, systemd unit and monitoring files, into
# target/packages; VERSION= for another than the workspace's.
.PHONY: packages
packages: release
	tools/packages $(if $(VERSION),--version $(VERSION))

tools:
	@tools/setup

# The memcached front end beside Debian's memcached, its extstore and the device; report in
# target/bench. BENCH_FLAGS="--size 1GiB --seconds 1 --runs 3" is shorter.
.PHONY: bench
bench: release
	tools/bench $(BENCH_FLAGS)

# What a request costs in two builds of the server, in turn: BEFORE= is a program; without it
# release 0.1 is built. PAIRS_FLAGS="--cases memcache-flash --pairs 21", or --help.
.PHONY: bench-pairs
bench-pairs: tools release
	.venv/bin/python -m pairs $(if $(BEFORE),--before $(BEFORE)) $(PAIRS_FLAGS)

# What the disk can do, whether fio agrees, and what the engine leaves of it; reports in
# target/bench. BENCH_DIR is on the disk to measure.
bench-engine: release
	tools/bench-engine

# What the CQL front end adds in front of a stock Cassandra, how soon hits are answered, how many a
# core answers; report in target/bench.
bench-cql: tools release
	tools/bench-cql

# Stock Cassandra against Cassandra with our caches inside, data several times larger than memory;
# as root. BENCH_FLAGS="--short", or --help for its parts.
bench-cassandra: tools release cassandra-jar
	AFTERGLOW_JAR=$(CURDIR)/cassandra/target/afterglow-cassandra.jar \
	  .venv/bin/python -m inside $(BENCH_FLAGS)
