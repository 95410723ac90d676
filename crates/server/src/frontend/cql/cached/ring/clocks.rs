//! What an operator is told of clocks that do not run alike.

use afterglow_ring::MemberId;

/// What is told when the clocks of other members do not run like ours any more: of these, and
/// whether ours is most likely the one at fault. `None`: all run alike again.
pub fn fault(drifting: &[MemberId], is_odd: bool) -> Option<String> {
    let names = drifting.iter().map(|id| format!("{:016x}", id.0)).collect::<Vec<_>>().join(", ");
    match (drifting.is_empty(), is_odd) {
        (true, _) => None,
        (false, true) => Some(format!(
            "the clock of this instance does not run like those of most members ({names}): it gets no lease, and reads pass through; look at the time service and at pauses of this machine"
        )),
        (false, false) => Some(format!(
            "the clocks of these members do not run like ours: {names}; they get no lease; look at the time service and at pauses of their machines"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_clock_is_at_fault_and_where_to_look_is_told() {
        let [one, two] = [MemberId(1), MemberId(0xfe)];
        let theirs = fault(&[one, two], false).unwrap();
        for part in ["0000000000000001, 00000000000000fe", "they get no lease", "their machines"] {
            assert!(theirs.contains(part), "{theirs}");
        }
        let ours = fault(&[one, two], true).unwrap();
        for part in ["the clock of this instance", "it gets no lease", "(0000000000000001, "] {
            assert!(ours.contains(part), "{ours}");
        }
        assert!(ours.contains("pauses of this machine") && ours.contains("reads pass through"));
        assert_eq!([false, true].map(|is_odd| fault(&[], is_odd)), [None, None], "alike again");
    }
}
