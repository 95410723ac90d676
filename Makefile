# Each target is a line or two; the work is in tools/, e2e/ and crates/.
.PHONY: demo demo-stop test unit e2e lint killtest soak fuzz build release tools
export PYTHONPATH := e2e

# Stock Cassandra, 400 MB of rows, the same reads directly and through Afterglow; KEEP=1 leaves both running.
demo: tools release
	.venv/bin/python -m demo $(if $(KEEP),--keep)

demo-stop:
	.venv/bin/python -m demo --stop

test: unit e2e

unit:
	cargo test --locked --workspace

e2e: tools build
	.venv/bin/pytest

lint: tools
	tools/lint

# kill -9 at random moments under load, every read judged: a short run against a database in memory, and a long one.
killtest: build
	target/debug/afterglow-workload killtest --fake-backend --rounds $(or $(ROUNDS),20)

soak: release
	target/release/afterglow-workload killtest --afterglow target/release/afterglow --fake-backend --rounds $(or $(ROUNDS),1000)

# libFuzzer (nightly): every target of crates/fuzz, or TARGET=name, for TIME seconds each.
fuzz:
	tools/fuzz $(or $(TIME),60) $(TARGET)

build:
	cargo build --locked --workspace --bins
	cargo build --locked --manifest-path e2e/rust-driver/Cargo.toml --target-dir target/rust-driver

release:
	cargo build --locked --release --workspace --bins

tools:
	@tools/setup
