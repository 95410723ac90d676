#!/usr/bin/env bash
# Compares our YCSB generators with the real site.ycsb:core from Maven Central (JDK 17 and Maven
# needed).
#   run.sh            draws fresh histograms from the jar and compares our generators with them
#   run.sh --update   also writes them to golden/ycsb.txt, which `cargo test` compares with offline
#
# Tolerance: two-sample chi-square deviate at most 4 per distribution (a false alarm in about 2,000
# runs of all of them).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mvn -q -B -f "$here/pom.xml" compile dependency:copy-dependencies -DoutputDirectory="$here/target/lib" >&2
fresh="$here/target/ycsb.txt"
java -cp "$here/target/classes:$here/target/lib/*" site.ycsb.workloads.Histograms >"$fresh"
if [ "${1:-}" = "--update" ]; then
  cp "$fresh" "$here/../golden/ycsb.txt"
  echo "wrote golden/ycsb.txt" >&2
fi
cd "$here/.."
cargo run -q -p afterglow-bench -- ycsb-check "$fresh"
