//! What an object costs in DRAM, counted by the allocator: a process of its own, since the count is
//! the whole process's.

use afterglow_bench::{alloc, memory};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// With so few objects the segment table weighs a little more than among the 20 million that the
/// target is about.
const BYTES_PER_OBJECT: f64 = 8.95;

#[test]
fn an_object_costs_less_than_nine_bytes_and_hardly_any_miss_a_read() {
    alloc::count();
    let dir = tempfile::tempdir().unwrap();
    let (objects, bulk, memory, size) = (500_000, 0, 0, 0);
    let options =
        memory::MemoryOptions { dir: dir.path().into(), objects, value: 8, bulk, memory, size };
    let report = memory::memory(&options).unwrap();
    let check = |name: &str| {
        let found = report.checks.iter().find(|c| c.name.contains(name));
        found.unwrap_or_else(|| panic!("no check is named {name}: {}", report.text()))
    };
    let cost = check("bytes per object").value;
    assert!((8.0..BYTES_PER_OBJECT).contains(&cost), "{}", report.text());
    for name in ["share of the slots", "reads per miss", "found", "counted one", "read before"] {
        assert!(check(name).holds, "{name}\n{}", report.text());
    }
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}
