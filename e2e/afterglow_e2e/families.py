"""Every family of `/metrics`, and what a load that is known makes of it.

A number or a range stands for the sum of a family's samples. A family that is not named here fails
`judge`, so that whoever adds one says what it must be.
"""

from math import inf

# Depends on the clock, the machine, or on how far copying to flash is.
ANY = (0, inf)
SOME = (1, inf)

# What goes wrong, of which a load without faults has nothing.
_NOTHING_WRONG = dict.fromkeys(
    (
        "afterglow_client_connections_refused",
        "afterglow_engine_checkpoint_failures",
        "afterglow_engine_clock_behind_seconds",
        "afterglow_engine_compaction_failures",
        "afterglow_engine_copies_lost",
        "afterglow_engine_copies_refused",
        "afterglow_engine_device_read_errors",
        "afterglow_engine_device_write_errors",
        "afterglow_engine_devices_silent",
        "afterglow_engine_dropped",
        "afterglow_engine_flash_dropped",
        "afterglow_engine_group_overflows",
        "afterglow_engine_journal_poisoned",
        "afterglow_engine_lost_index_blocks",
        "afterglow_engine_lost_kill_parts",
        "afterglow_engine_refused_puts",
        "afterglow_engine_retired_segments",
        "afterglow_engine_retired_segments_tried_again",
        "afterglow_engine_stale_slots",
        "afterglow_errors",
        "afterglow_tls_handshake_failures",
    ),
    0,
)

# A cache that has just been made, and holds a few small objects.
_SMALL_NEW_CACHE = {
    "afterglow_engine_checkpoint_running": ANY,
    "afterglow_engine_checkpoints": ANY,
    "afterglow_engine_chunks_waiting": ANY,
    "afterglow_engine_compactions": ANY,
    "afterglow_engine_device_reads": 0,
    "afterglow_engine_dram_bytes": SOME,
    "afterglow_engine_dram_capacity_bytes": (16 << 20, 64 << 20),
    "afterglow_engine_flash_bytes": (200 << 20, 256 << 20),
    "afterglow_engine_flash_segment_bytes": 1 << 20,
    "afterglow_engine_flash_segments": (200, 256),
    "afterglow_engine_flash_segments_free": (190, 256),
    "afterglow_engine_index_bytes": SOME,
    "afterglow_engine_index_slots": SOME,
    "afterglow_engine_index_slots_used": ANY,
    "afterglow_engine_journal_entries": SOME,
    "afterglow_engine_journal_entries_used": ANY,
    "afterglow_engine_kills": 0,
    "afterglow_engine_load_parts": 0,
    "afterglow_engine_load_parts_done": 0,
    "afterglow_engine_loading": 0,
    "afterglow_engine_reclaimed_segments": 0,
    "afterglow_engine_segment_table_bytes": SOME,
    "afterglow_engine_unsaved_age_seconds": (0, 60),
    "afterglow_engine_unsaved_bytes": ANY,
    "afterglow_engine_written_bytes": SOME,
}

_PROCESS = {
    "afterglow_build_info": 1,
    "process_cpu_seconds": (1e-6, inf),
    "process_open_fds": SOME,
    "process_resident_memory_bytes": (1 << 20, 1 << 30),
    "process_start_time_seconds": SOME,
}

_EVERY = {
    **_NOTHING_WRONG,
    **_SMALL_NEW_CACHE,
    **_PROCESS,
    "afterglow_client_connections": 1,
    "afterglow_client_connections_open": 1,
    "afterglow_client_received_bytes": (400, 100_000),
    "afterglow_client_sent_bytes": (400, 100_000),
    "afterglow_flash_reads_in_flight": 0,
    "afterglow_hot_keys_bytes": SOME,
    # One state is 1, the others are 0.
    "afterglow_lease_state": 1,
}

# Ten sets, and gets, gats and meta gets of those and of four that are not there.
MEMCACHE = {
    **_EVERY,
    "afterglow_engine_hits": (31, 34),
    "afterglow_engine_misses": (12, 13),
    "afterglow_engine_removes": 3,
    "afterglow_engine_stored_puts": (20, 31),
    "afterglow_hits": 31,
    "afterglow_lease_events": 0,
    "afterglow_misses": 12,
    "afterglow_request_duration_seconds": 57,
    "afterglow_requests": 57,
    "memcached_accepting_connections": 1,
    "memcached_commands": (57, 71),
    "memcached_connections": 1,
    "memcached_connections_rejected": 0,
    "memcached_connections_yielded": 0,
    "memcached_current_bytes": SOME,
    "memcached_current_connections": 1,
    "memcached_current_items": 7,
    "memcached_expired_misses": 0,
    "memcached_extstore_bytes_limit": (200 << 20, 256 << 20),
    "memcached_extstore_bytes_read": 0,
    "memcached_extstore_bytes_used": ANY,
    "memcached_extstore_bytes_written": ANY,
    "memcached_extstore_compact_lost": 0,
    "memcached_extstore_io_queue_depth": 0,
    "memcached_extstore_objects_evicted": 0,
    "memcached_extstore_objects_read": 0,
    "memcached_extstore_objects_used": ANY,
    "memcached_extstore_pages_evicted": 0,
    "memcached_extstore_pages_free": (190, 256),
    "memcached_extstore_pages_reclaimed": 0,
    "memcached_extstore_pages_used": ANY,
    "memcached_flushed_misses": 0,
    "memcached_idle_connections": 0,
    "memcached_item_no_memory": 0,
    "memcached_item_too_large": 0,
    "memcached_items": (20, 31),
    "memcached_items_evicted": 0,
    "memcached_items_reclaimed": 0,
    "memcached_limit_bytes": SOME,
    "memcached_malloced_bytes": SOME,
    "memcached_max_connections": 1024,
    "memcached_meta_commands": 14,
    "memcached_process_system_cpu_seconds": ANY,
    "memcached_process_user_cpu_seconds": ANY,
    "memcached_read_bytes": (400, 100_000),
    "memcached_slab_cold_items": ANY,
    "memcached_slab_current_items": 7,
    "memcached_slab_hot_items": (0, 7),
    "memcached_slab_lru_hits": (31, 34),
    "memcached_slab_mem_requested_bytes": SOME,
    "memcached_parts_lost": 0,
    "memcached_stalled_connections": 0,
    "memcached_time_seconds": SOME,
    "memcached_up": 1,
    "memcached_uptime_seconds": ANY,
    "memcached_version": 1,
    "memcached_written_bytes": (400, 100_000),
}

# Ten rows are written, read three times each, and one of them is deleted; one more before.
CQL = {
    **_EVERY,
    "afterglow_backend_authentication": 0,
    "afterglow_backend_connection_failures": 0,
    "afterglow_backend_connections": (2, 16),
    "afterglow_backend_connects": (2, 16),
    "afterglow_backend_requests": (21, 500),
    "afterglow_backend_requests_in_flight": (0, 2),
    "afterglow_backend_unanswered": 0,
    "afterglow_backend_up": 1,
    "afterglow_carried": 0,
    "afterglow_client_connections_cut": 0,
    "afterglow_client_held_bytes": (0, 1 << 20),
    "afterglow_client_large_requests_refused": 0,
    "afterglow_engine_hits": (21, 40),
    # The load makes a table: what an earlier run may have left of it is dropped.
    "afterglow_engine_kills": 1,
    "afterglow_engine_misses": (11, 20),
    "afterglow_engine_removes": (12, 40),
    "afterglow_engine_stored_puts": (11, 20),
    "afterglow_fills": (11, 20),
    "afterglow_hedged_fills": 0,
    "afterglow_hedges_won": 0,
    "afterglow_hits": (21, 40),
    "afterglow_invalidations": (12, 40),
    "afterglow_lease_events": 1,
    "afterglow_misses": (11, 20),
    "afterglow_passes": (0, 20),
    "afterglow_prepared_bytes": 0,
    "afterglow_prepared_forgotten": 0,
    "afterglow_prepared_statements": 0,
    "afterglow_quarantined_partitions": 0,
    "afterglow_quarantines": 0,
    "afterglow_raised_writes": 0,
    "afterglow_repeated_reads": 0,
    "afterglow_repeated_writes": 0,
    "afterglow_request_duration_seconds": (44, 100),
    "afterglow_requests": (44, 100),
    "afterglow_settled_writes": 0,
    "afterglow_table_hit_age_seconds": (21, 40),
    "afterglow_table_misses": (11, 20),
    "afterglow_table_passes": (0, 20),
    "afterglow_table_requests": (44, 100),
    "afterglow_unsettled_writes": 0,
    "afterglow_weak_writes": 0,
    "afterglow_write_outcomes": (12, 40),
    "afterglow_writes": (12, 40),
}


def total(family):
    """The sum of a family's samples; of a histogram, how many were counted."""
    last = "_count" if family.type == "histogram" else "_total" if family.type == "counter" else ""
    name = family.name + last
    return sum(sample.value for sample in family.samples if sample.name == name)


def judge(found, expected):
    """Holds all families against what they must be; `found` has them by name."""
    assert set(found) == set(expected), "families that are not named, or not there"
    wrong = {}
    for name, family in found.items():
        bounds = expected[name]
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
        if not low <= total(family) <= high:
            wrong[name] = (total(family), bounds)
    assert not wrong, wrong
