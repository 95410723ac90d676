//! What is particular to some drivers, which say their name in STARTUP.

/// What a driver does about the tokens of a ring that changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverHabits {
    /// It takes new tokens of nodes that it knows only where a rack has changed: Python's.
    pub reads_racks: bool,
    /// It never forgets tokens that it has read of a node that stays: gocql, Node's.
    pub forgets_nothing: bool,
    /// What it reads of the node to which its connection for events goes, it adds to the tokens
    /// that it had of it: the C++ driver's.
    pub adds_tokens: bool,
    /// It notices that its connection has ended when it next uses it. News of a node that it does
    /// not know make it do so at once: Python's.
    pub is_idle: bool,
    /// It takes tokens once, and its connection for events carries statements too, so that nothing
    /// is won by closing it: Node's.
    pub keeps_tokens: bool,
}

impl DriverHabits {
    /// Those of the driver of that name.
    pub fn of(driver: Option<&str>) -> Self {
        let says = |words| driver.is_some_and(|driver| driver.contains(words));
        let is_python = says("Python Driver");
        let is_node = says("Node.js Driver");
        let is_gocql = driver.is_some_and(|driver| driver.to_lowercase().contains("gocql"));
        Self {
            reads_racks: is_python,
            is_idle: is_python,
            keeps_tokens: is_node,
            forgets_nothing: is_node || is_gocql,
            adds_tokens: says("C/C++ Driver"),
        }
    }

    /// Whether it may have an old owner of a token beside the new one.
    pub fn mixes_owners(&self) -> bool {
        self.forgets_nothing || self.adds_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_known_by_the_names_that_they_have_had() {
        for name in ["DataStax Python Driver", "Apache Cassandra Python Driver"] {
            let habits = DriverHabits::of(Some(name));
            assert!(habits.reads_racks && habits.is_idle && !habits.keeps_tokens, "{name}");
        }
        let node = DriverHabits::of(Some("DataStax Node.js Driver for Apache Cassandra"));
        let none = DriverHabits::default();
        assert_eq!(node, DriverHabits { keeps_tokens: true, forgets_nothing: true, ..none });
        for name in ["github.com/gocql/gocql", "Apache GoCQL Driver"] {
            assert!(DriverHabits::of(Some(name)).forgets_nothing, "{name}");
        }
        for name in
            ["Scylla Shard-Aware C/C++ Driver", "DataStax C/C++ Driver for Apache Cassandra"]
        {
            let habits = DriverHabits::of(Some(name));
            assert_eq!(habits, DriverHabits { adds_tokens: true, ..none }, "{name}");
            assert!(habits.mixes_owners(), "{name}");
        }
        for name in [None, Some("Apache Cassandra Java Driver")] {
            assert_eq!(DriverHabits::of(name), none);
        }
    }
}
