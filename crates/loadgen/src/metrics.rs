//! Reads the hit and miss counters that Afterglow publishes.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Reads through the CQL front end, by where they were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounters {
    /// From DRAM.
    pub dram_hits: u64,
    /// From flash.
    pub flash_hits: u64,
    /// Answered by the database, for whatever reason.
    pub misses: u64,
}

impl CacheCounters {
    /// What happened between `earlier` and this.
    pub fn since(&self, earlier: &CacheCounters) -> CacheCounters {
        // A restart of the server sets its counters to zero.
        let difference = |now: u64, then: u64| if now >= then { now - then } else { now };
        CacheCounters {
            dram_hits: difference(self.dram_hits, earlier.dram_hits),
            flash_hits: difference(self.flash_hits, earlier.flash_hits),
            misses: difference(self.misses, earlier.misses),
        }
    }

    /// Hits by reads, 0 without reads.
    pub fn hit_ratio(&self) -> f64 {
        let hits = self.dram_hits + self.flash_hits;
        if hits + self.misses == 0 { 0.0 } else { hits as f64 / (hits + self.misses) as f64 }
    }
}

/// Fetches `/metrics` from the admin address `host:port`.
pub fn scrape(address: &str) -> io::Result<CacheCounters> {
    Ok(parse(&get(address, "/metrics")?))
}

/// The body of a plain HTTP GET; an error unless the answer is 200. Waits at most two seconds per
/// step.
pub fn get(address: &str, path: &str) -> io::Result<String> {
    let limit = Duration::from_secs(2);
    let target = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&target, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("not an HTTP answer"))?;
    if head.split_ascii_whitespace().nth(1) != Some("200") {
        return Err(io::Error::other(format!(
            "{path}: {}",
            head.lines().next().unwrap_or_default()
        )));
    }
    Ok(body.to_owned())
}

/// The sum of all samples of the metric `name` in the page `text`.
pub fn sum(text: &str, name: &str) -> u64 {
    let samples = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let own = samples.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    own.map(|(_, value)| value.parse::<f64>().unwrap_or(0.0)).sum::<f64>() as u64
}

/// The counters in the page `text`.
pub fn parse(text: &str) -> CacheCounters {
    let mut counters = CacheCounters::default();
    for line in text.lines().filter(|l| l.contains("frontend=\"cql\"")) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let value = value.parse::<f64>().unwrap_or(0.0) as u64;
        if name.starts_with("afterglow_misses_total{") {
            counters.misses += value;
        } else if name.starts_with("afterglow_hits_total{") && name.contains("tier=\"flash\"") {
            counters.flash_hits += value;
        } else if name.starts_with("afterglow_hits_total{") {
            counters.dram_hits += value;
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_front_end_are_added_up_and_others_ignored() {
        let text = "# HELP afterglow_hits_total x\n\
            afterglow_hits_total{frontend=\"cql\",tier=\"dram\"} 10\n\
            afterglow_hits_total{frontend=\"cql\",tier=\"flash\"} 25\n\
            afterglow_hits_total{frontend=\"memcache\",tier=\"flash\"} 1000\n\
            afterglow_misses_total{frontend=\"cql\",reason=\"absent\"} 3\n\
            afterglow_misses_total{frontend=\"cql\",reason=\"expired\"} 2\n";
        let counters = parse(text);
        assert_eq!(counters, CacheCounters { dram_hits: 10, flash_hits: 25, misses: 5 });
        assert_eq!(counters.hit_ratio(), 0.875);
        assert_eq!((sum(text, "afterglow_hits_total"), sum(text, "afterglow_hits")), (1035, 0));
        let earlier = CacheCounters { dram_hits: 4, flash_hits: 100, misses: 5 };
        assert_eq!(
            counters.since(&earlier),
            CacheCounters { dram_hits: 6, flash_hits: 25, misses: 0 }
        );
    }
}
