//! CPU time: our own, another process's, the machine's. In nanoseconds; other processes and the
//! machine in steps of a tick (10 ms).

use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

/// User and system time this thread has used so far.
pub fn of_thread() -> u64 {
    nanos(ClockId::ThreadCPUTime)
}

/// User and system time all threads of this process have used so far.
pub fn of_self() -> u64 {
    nanos(ClockId::ProcessCPUTime)
}

fn nanos(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// User and system time that all threads of process `pid`, ended ones too, have used so far. An
/// error if there is no such process.
pub fn of_process(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/PID/stat"))
}

/// User and system time that those threads of process `pid` have used that run now and whose name
/// begins with `name`.
///
/// # Errors
/// When there is no such process.
pub fn of_threads(pid: u32, name: &str) -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let folder = thread?.path();
        // One that has ended meanwhile has used nothing since.
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        if read("comm").starts_with(name) {
            sum += parse_stat(&read("stat")).unwrap_or(0);
        }
    }
    Ok(sum)
}

/// Time that all cores together were not idle so far (steal counts as busy: it was not ours).
pub fn of_machine() -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    parse_machine(&stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/stat"))
}

fn tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// Fields 14 (user) and 15 (system). The command name in field 2 may hold blanks and parentheses,
/// so count from the last one.
fn parse_stat(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * tick())
}

/// First line: user nice system idle iowait irq softirq steal guest ...; idle and iowait are not
/// work.
fn parse_machine(stat: &str) -> Option<u64> {
    let fields: Result<Vec<u64>, _> =
        stat.lines().next()?.split_ascii_whitespace().skip(1).take(8).map(str::parse).collect();
    let fields = fields.ok()?;
    let busy: u64 =
        fields.iter().enumerate().filter(|(i, _)| *i != 3 && *i != 4).map(|(_, v)| v).sum();
    Some(busy * tick())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_even_with_odd_command_names() {
        let line = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_stat(line), Some(12 * tick()));
        assert_eq!(parse_stat("42 (x) S 1"), None);
        assert_eq!(parse_machine("cpu  10 1 2 1000 500 3 4 5 0 0\ncpu0 1"), Some(25 * tick()));
    }

    #[test]
    fn own_time_grows_with_work_and_agrees_with_proc() {
        let before = of_thread();
        let mut x = 1u64;
        while of_thread() < before + 30_000_000 {
            x = std::hint::black_box(crate::rng::mix(x));
        }
        assert!(of_self() >= of_thread() - before);
        assert!(of_process(std::process::id()).unwrap() > 0);
        assert!(of_process(0).is_err());
        let named = std::thread::Builder::new().name("busy-thread".into());
        let pid = std::process::id();
        let busy = named.spawn(move || while of_threads(pid, "busy-").unwrap() == 0 {}).unwrap();
        busy.join().unwrap();
        assert_eq!(of_threads(pid, "nobody").unwrap(), 0);
    }
}
