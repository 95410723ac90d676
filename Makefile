# Each target is a line or two; the work is in tools/, e2e/ and crates/.
.PHONY: demo demo-stop test unit e2e lint killtest soak build release tools
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

# kill -9 at random moments under load, checked for stale and wrong values: a short run; `make soak` is the long one.
killtest: tools build
	.venv/bin/python -m afterglow_e2e.killtest --seconds $(or $(SECONDS),60)

soak: tools release
	.venv/bin/python -m afterglow_e2e.killtest --release --seconds $(or $(SECONDS),3600)

build:
	cargo build --locked --workspace --bins
	cargo build --locked --manifest-path e2e/rust-driver/Cargo.toml --target-dir target/rust-driver

release:
	cargo build --locked --release --workspace --bins

tools:
	@tools/setup
