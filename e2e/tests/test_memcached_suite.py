"""memcached's own tests, of the version whose answers Afterglow gives."""

import pytest

from afterglow_e2e.memcached_suite import LIMIT, PERL, VERSION, said, source

# All that these expect is so.
ALIKE = """
    ascii-auth binary binary-get bogus-commands cas chunked-items evictions flags getandtouch getset
    idle-timeout incrdecr issue_104 issue_108 issue_152 issue_192 issue_3 issue_41 issue_68 issue_70
    line-lengths malicious-commands maxconns metaget multiversioning noreply quit strtol-testing
    touch unixsocket
""".split()

LONG = {"binary", "chunked-items"}

# All but what these numbers stand for.
BUT_FOR = {
    "flush-all": ({27}, "there is no -C: an object always has a cas token"),
    "issue_22": ({43, 84}, "flash takes what leaves memory, so nothing is evicted"),
    "issue_61": ({7}, "there is no -R: a turn is always 20 requests"),
    "stats-conns": (
        {5, 6, 10},
        "a state says what a connection waits for, not how far its request has come; no UDP",
    ),
    "stats": (
        {1, 4, 106},
        "there are other figures; buffers for writing count as bytes; what is expired already "
        "when it is set is not kept, so that its read counts as no expired one",
    ),
}

SLABS = "is about slab classes, their pages or chunks: there is one class"
LRU = "is about the queues of memcached's memory"
EXTSTORE = "is about options and counters of extstore"
TLS = "needs Perl's IO::Socket::SSL, and options of TLS that Afterglow has not"
FLAKY = "memcached itself leaves it out"
LEFT_OUT = {
    **dict.fromkeys(
        "issue_14 issue_163 issue_183 issue_29 issue_42 slabs-reassign-chunked slabs-reassign2 "
        "slabs_reassign 64bit".split(),
        SLABS,
    ),
    **dict.fromkeys("lru lru-crawler lru-maintainer".split(), LRU),
    **dict.fromkeys(
        "binary-extstore chunked-extstore error-extstore extstore extstore-buckets "
        "extstore-jbod".split(),
        EXTSTORE,
    ),
    **dict.fromkeys(
        "ssl_cert_refresh ssl_ports ssl_proto_version ssl_session_resumption ssl_settings "
        "ssl_verify_modes".split(),
        TLS,
    ),
    **dict.fromkeys("issue_140 issue_260 refhang slabhang".split(), FLAKY),
    "00-startup": "is about options (-C, -b, -B) that Afterglow has not",
    "binary-sasl": "needs a memcached with SASL's library, and its password file",
    "conn-limits": "a multiget beyond the memory for answers waits for its client, and is no error",
    "daemonize": "the service manager does that",
    "dash-M": "there is no -M: a full cache never refuses a store",
    "dyn-maxbytes": "cache_memlimit raises memory to what the server started with, no further",
    "expirations": "moves the clock of a memcached that is built for debugging",
    "issue_50": "there is no -B: who begins like a text command may take time to end it",
    "issue_67": "is about the addresses of -l, -p and -U",
    "item_size_max": "the largest object is 64 MiB; it asks for up to 1 GiB",
    "misbehave": "the service manager takes privileges away",
    "proxy": "no proxy",
    "restart": "is about the memory file of -e",
    "shutdown": "no command ends the server",
    "stats-detail": "no `stats detail`",
    "udp": "no UDP",
    "watcher": "waits for evictions, and for look-ups of a set: flash takes what leaves memory, and "
    "a set looks nothing up",
    "watcher_connid": "waits for the look-up of a set",
    "whitespace": "is about memcached's source",
}


@pytest.fixture(scope="module")
def tests():
    if not PERL:
        pytest.skip("needs Perl")
    if not (found := source()):
        pytest.skip(f"needs apt and a Debian that has the source of memcached {VERSION}")
    return found / "t"


def test_every_test_of_memcached_is_run_or_left_out_for_a_reason(tests):
    there = sorted(path.stem for path in tests.glob("*.t"))
    assert there == sorted([*ALIKE, *BUT_FOR, *LEFT_OUT])


# It is the limit of each that ends it, with what it has said.
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in LONG else name
        for name in [*ALIKE, *BUT_FOR]
    ],
)
def test_memcached_s_own(tests, name, tmp_path):
    different, why = BUT_FOR.get(name, (set(), ""))
    good, bad, errors = said(name, tmp_path)
    assert bad == different, f"{why or 'no difference'} is all that is known: {errors[-4000:]}"
    assert good > 0
