//! Rows that are on flash alone when a write of them begins.

use super::*;

#[test]
fn a_row_on_flash_follows_a_write_once_it_is_read() {
    for bounded in [false, true] {
        let stage = Stage::full(bounded).restarted();
        let mut write = stage.begin(UPDATE, Some(NEW));
        assert_eq!(stage.served(), None, "dropped before the write is sent");
        stage.find(&mut write);
        assert_eq!(stage.served(), None, "and not brought back by that");
        assert_eq!(settle(write), RowOutcome::Updated);
        assert_eq!(stage.served(), row("new", "other"));
        assert_eq!(stage.write(UPDATE, Some(NEW + 1)), RowOutcome::Updated, "it is in DRAM now");
    }
}

#[test]
fn a_row_on_flash_that_is_not_found_in_time_is_dropped() {
    let stage = Stage::full(false).restarted();
    let mut write = stage.begin(UPDATE, Some(NEW));
    drop(write.take_flash_read());
    assert_eq!(settle(write), RowOutcome::OnFlash);
    assert_eq!(stage.served(), None);
    // Nor where the write takes long, whatever is found later.
    let stage = Stage::full(false).restarted();
    let hit = {
        let Lookup::Flash(read) = stage.cache.look_up(&stage.key) else { panic!("on flash") };
        let bytes = stage._engine.devices().read_at(read.device(), read.offset(), read.len());
        let Lookup::Hit(hit) = read.finish(bytes) else { panic!("it is there") };
        hit
    };
    let stage = stage.restarted();
    let mut write = stage.begin(UPDATE, Some(NEW));
    write.abandon_row();
    write.found_on_flash(&hit);
    assert_eq!(settle(write), RowOutcome::Dropped);
    assert_eq!(stage.served(), None);
}

#[test]
fn a_row_on_flash_follows_no_write_that_it_would_not_follow_from_memory() {
    let older = Stage::full(false).restarted();
    let mut write = older.begin(UPDATE, Some(OLD));
    older.find(&mut write);
    assert_eq!(settle(write), RowOutcome::Dropped, "it is no newer than what is cached");
    let other = Stage::full(false).restarted();
    let mut write = other.begin(UPDATE, Some(NEW));
    other.find(&mut write);
    settle(other.begin(UPDATE, Some(NEW + 1)));
    assert_eq!(settle(write), RowOutcome::Dropped, "another write came meanwhile");
    let later = Stage::full(true).restarted();
    let mut write = later.begin(UPDATE, Some(NEW));
    later.clock.pass(BOUND);
    later.find(&mut write);
    assert_eq!(settle(write), RowOutcome::Dropped, "its time was over when it was found");
    let claimed = Stage::full(false).restarted();
    let mut write = claimed.begin(UPDATE, Some(NEW));
    claimed.cache.set_claim(Some((8, 0)));
    claimed.find(&mut write);
    assert_eq!(settle(write), RowOutcome::Dropped, "it is of a claim before");
    let shared = Stage::full(false).restarted();
    shared.cache.share(4);
    shared.cache.agree(Some(0));
    assert!(shared.begin(UPDATE, Some(NEW)).take_flash_read().is_none(), "not in a ring");
    let weak = Stage::full(false).restarted();
    let mut write = weak.begin_as(UPDATE, Some(NEW), true, true);
    assert!(write.take_flash_read().is_none(), "a quorum may miss the write");
}

#[test]
fn a_time_to_live_counts_from_before_the_write_was_sent_whenever_its_row_is_found() {
    let stage = Stage::full(false).restarted();
    stage.clock.pass(50);
    let mut write = stage.begin("UPDATE ks.t USING TTL 20 SET v = 'new' WHERE k = 1", Some(NEW));
    stage.clock.pass(5);
    stage.find(&mut write);
    assert_eq!(settle(write), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 20 - 1 - 5);
}

#[test]
fn what_is_kept_for_rows_on_flash_takes_a_bounded_number_of_bytes() {
    let stage = Stage::full(false).restarted();
    let pending = || stage.cache.pending.load(Ordering::Relaxed);
    let value = "v".repeat(10_000);
    let update = format!("UPDATE ks.t SET v = '{value}' WHERE k = 1");
    let mut write = stage.begin(&update, Some(NEW));
    assert!(pending() >= 10_000, "the written value");
    stage.find(&mut write);
    assert!((10_000..20_000).contains(&pending()), "the new row, and no more");
    assert_eq!(settle(write), RowOutcome::Updated);
    assert_eq!(pending(), 0, "given back");
    let stage = stage.restarted();
    stage.cache.pending.store(MOST_PENDING, Ordering::Relaxed);
    let mut write = stage.begin(&update, Some(NEW + 1));
    assert!(write.take_flash_read().is_none());
    assert_eq!(settle(write), RowOutcome::Dropped);
}
