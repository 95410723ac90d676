"""What the memcached front end says of itself: the figures that memcached has, and those of
`/metrics`.
"""

import re

import pytest

from afterglow_e2e.memcache import (
    MemcacheAfterglow,
    Memcached,
    collisions,
    fill,
    on_flash,
    peer,
    say,
)


def test_figures_for_dashboards(front_end, raw):
    raw.set(b"f", b"1")
    raw.get(b"f")
    raw.get(b"no such key")
    raw.line(b"incr f 1")
    metrics = front_end.metrics()
    assert metrics.value("memcached_up") == 1
    for command, status in [("get", "hit"), ("get", "miss"), ("set", "hit"), ("incr", "hit")]:
        assert metrics.total("memcached_commands_total", command=command, status=status) > 0, (
            command,
            status,
        )
    for name in "current_items current_bytes limit_bytes current_connections max_connections uptime_seconds".split():
        metrics.value(f"memcached_{name}")
    assert metrics.total("afterglow_hits_total", frontend="memcache", tier="dram") > 0


# What the Prometheus exporter of memcached reads of each `stats`, as far as memcached 1.6.18 has
# it.


EXPORTER = {
    "": """uptime time version rusage_user rusage_system bytes limit_maxbytes curr_items total_items
        bytes_read
        bytes_written curr_connections total_connections rejected_connections conn_yields
        listen_disabled_num accepting_conns evictions reclaimed store_too_large store_no_memory
        lru_crawler_starts direct_reclaims crawler_items_checked crawler_reclaimed moves_to_cold
        moves_to_warm moves_within_lru get_hits get_misses delete_hits delete_misses incr_hits
        incr_misses decr_hits decr_misses cas_hits cas_misses cas_badval touch_hits touch_misses
        cmd_flush cmd_set extstore_compact_lost extstore_compact_rescues extstore_compact_skipped
        extstore_page_allocs extstore_page_evictions extstore_page_reclaims extstore_pages_free
        extstore_pages_used extstore_objects_evicted extstore_objects_read extstore_objects_written
        extstore_objects_used extstore_bytes_evicted extstore_bytes_written extstore_bytes_read
        extstore_bytes_used
        extstore_bytes_fragmented extstore_limit_maxbytes extstore_io_queue""",
    " settings": "maxconns lru_crawler",
    " slabs": """chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end
        total_malloced get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval
        touch_hits""",
    " items": """number age crawler_reclaimed evicted evicted_nonzero evicted_time evicted_unfetched
        expired_unfetched outofmemory reclaimed tailrepairs mem_requested moves_to_cold
        moves_to_warm moves_within_lru number_hot number_warm number_cold age_hot age_warm
        hits_to_hot hits_to_warm
        hits_to_cold hits_to_temp""",
    " conns": "addr listen_addr state secs_since_last_cmd",
}

# What memcached 1.6.18 names and Afterglow does not, as docs/guide/memcached.md says: parts that it
# does not have, and what it does not know.
LEFT_OUT = {
    "": """libevent reserved_fds response_obj_.* read_buf_.* slab_.* slabs_moved lru_maintainer_juggles
        lru_bumps_dropped malloc_fails unexpected_napi_ids round_robin_fallback
        recache_from_extstore expired_unfetched evicted_unfetched evicted_active
        extstore_compact_rescues extstore_compact_skipped extstore_page_allocs
        extstore_objects_written extstore_bytes_evicted
        extstore_bytes_fragmented""",
    " settings": """reqs_per_event tcp_backlog hashpower_init hash_algorithm slab_.* lru_crawler_.* tail_repair_time
        hot_.* warm_.* temporary_ttl .*_logbuf_size ext_.* ssl_.* num_napi_ids memory_file""",
    " slabs": "",
    " items": "age evicted_nonzero evicted_time expired_unfetched evicted_unfetched evicted_active",
    " conns": "",
}


def names(server, which):
    """What a kind of `stats` names, without the class or the connection that it is of."""
    raw = server.connect()
    raw.set(b"some", b"object")
    raw.send(b"stats%s\r\n" % which.encode())
    lines = raw.until(b"END\r\n").decode().splitlines()[:-1]
    raw.close()
    return {re.sub(r"^(items:)?\d+:", "", line.split(" ")[1]) for line in lines}


@pytest.mark.parametrize("which", EXPORTER)
def test_stats_have_the_names_that_memcached_has_and_monitoring_reads(front_end, tmp_path, which):
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    left_out = re.compile("|".join(LEFT_OUT[which].split()) or "nothing")
    ours = names(front_end, which)
    with Memcached(["-o", f"ext_path={tmp_path}/ext:64m"]) as memcached:
        theirs = names(memcached, which)
    read = set(EXPORTER[which].split())
    assert read <= theirs, "the list is of another memcached"
    assert {name for name in theirs | read if not left_out.fullmatch(name)} <= ours


def figures(raw, which=b""):
    """All that a kind of `stats` says."""
    raw.send(b"stats%s\r\n" % which)
    lines = raw.until(b"END\r\n").decode().splitlines()[:-1]
    return dict(line.split(" ", 2)[1:] for line in lines)


# Counted by the store on flash or of the process: memcached, too, leaves these when it is told to
# reset.
GAUGES = re.compile(
    "pid|uptime|time|version|pointer_size|rusage_.*|max_connections|curr_.*|connection_structures|limit_maxbytes|"
    "accepting_conns|threads|hash_.*|bytes|extstore_.*"
)


def of_class(raw, which, prefix):
    """The figures of the one class of objects, by name."""
    text = say(raw, b"stats %s\r\n" % which).decode()
    return {name: int(value) for name, value in re.findall(rf"STAT {prefix}(\w+) (\d+)", text)}


def test_items_and_slabs_count_what_was_done(tmp_path):
    count, size = 1500, 30_000
    with MemcacheAfterglow(folder=tmp_path, flash="256MiB", memory="32MiB") as front_end:
        raw = front_end.connect()
        fill(raw, count, size)
        on_flash(front_end)
        found = sum(raw.get(b"o%d" % i) is not None for i in range(count))
        for _ in range(3):
            assert raw.line(b"delete none") == b"NOT_FOUND"
        items, slabs = of_class(raw, b"items", "items:1:"), of_class(raw, b"slabs", "1:")
        # Two keys may share a slot of the index.
        assert found == count - collisions(front_end)
        assert items["number"] == found
        assert items["number_hot"] + items["number_cold"] == items["number"]
        assert 0 < items["number_hot"] * size < 32 << 20
        assert items["hits_to_hot"] + items["hits_to_cold"] == found
        assert items["hits_to_cold"] > count // 4, "more than memory holds was read"
        assert items["evicted"] == items["outofmemory"] == items["reclaimed"] == 0
        assert items["mem_requested"] > found * size
        assert (slabs["cmd_set"], slabs["get_hits"]) == (count, found)
        assert slabs["used_chunks"] * slabs["chunk_size"] <= items["mem_requested"]
        assert slabs["used_chunks"] <= slabs["total_chunks"]
        raw.line(b"delete o1")
        assert of_class(raw, b"items", "items:1:")["number"] == found - 1


def test_a_reset_resets_what_memcached_resets(memcached):
    with MemcacheAfterglow() as front_end:
        seen = []
        for server in (front_end, memcached):
            raw = server.connect()
            say(
                raw,
                b"set r 0 0 1\r\n1\r\nget r none\r\nincr r 1\r\ntouch r 0\r\ndelete none\r\nflush_all invalid\r\n",
            )
            assert int(figures(raw)["cmd_get"]) > 0
            assert raw.line(b"stats reset") == b"RESET"
            after = figures(raw)
            seen.append({name for name, value in after.items() if re.fullmatch(r"[0.]+", value)})
            assert say(raw, b"get r\r\n").startswith(b"VALUE r 0 1")
            assert (
                figures(raw)["get_hits"] == "1"
                and figures(raw)["curr_connections"] == after["curr_connections"]
            )
            raw.close()
        ours, theirs = seen
        both = set(figures(front_end.connect())) - ours
        left = {name for name in theirs & both if not GAUGES.fullmatch(name)}
        assert not left and len(theirs & ours) > 30, left
        assert (
            front_end.metrics().total("memcached_commands_total", command="incr", status="hit") == 1
        )
