//! The settings of what may be cached for how long.

use crate::config::{
    TableRule, WriteLevelRule,
    key::{Group, SettingKey, Shape},
    put::{all, one, put, put_list, put_unless},
};

pub(super) const KEYS: &[SettingKey] = &[
    SettingKey {
        name: "table-policy",
        group: Group::Policy,
        shape: Shape::List,
        value_name: "PATTERN=POLICY",
        example: "shop.*=exclusive",
        help: "Who else writes to which tables. PATTERN is keyspace.table with * and ?; the \
               first match holds. POLICY `exclusive`: you promise that all writers use \
               Afterglow, also while it is down; rows stay cached. `max-staleness=60s`: others \
               may write; no row is served for longer, so a large flash tier earns little. \
               `off`: not cached. Tables without a match: max-staleness=60s. Repeatable",
        live: true,
        set: |c, v| put_list::<TableRule>(&mut c.table_policy.rules, v),
        get: |c| all(&c.table_policy.rules),
    },
    SettingKey {
        name: "table-write-level",
        group: Group::Policy,
        shape: Shape::List,
        value_name: "PATTERN=LEVEL",
        example: "shop.*=LOCAL_QUORUM",
        help: "Raise writes at ONE and LOCAL_ONE that a quorum read may miss to this level; the \
               first match holds. LEVEL: LOCAL_QUORUM, QUORUM, EACH_QUORUM or ALL. Without it \
               what such a write touches is cached for at most a minute, for \
               unknown-outcome-hold. Repeatable",
        live: false,
        set: |c, v| put_list::<WriteLevelRule>(&mut c.table_write_level.rules, v),
        get: |c| all(&c.table_write_level.rules),
    },
    SettingKey {
        name: "restart-grace",
        group: Group::Policy,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "60s",
        help: "After a longer absence exclusive tables start cold",
        live: false,
        set: |c, v| put(&mut c.restart_grace, v),
        get: |c| one(c.restart_grace),
    },
    SettingKey {
        name: "planned-restart-grace",
        group: Group::Policy,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "30m",
        help: "After a clean stop exclusive tables stay warm for this long, also if the machine is \
               restarted. You promise that nobody writes to them meanwhile, which no lease can \
               show. After a crash restart-grace counts. Not in a ring. off makes no promise",
        live: false,
        set: |c, v| put_unless("off", &mut c.planned_restart_grace, &v[0]),
        get: |c| {
            one(c.planned_restart_grace.map_or_else(|| "off".into(), |grace| grace.to_string()))
        },
    },
    SettingKey {
        name: "unknown-outcome-hold",
        group: Group::Policy,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "3h",
        help: "After a write of unknown outcome (a timeout, a lost connection), do not cache its \
               partition for this long. At least the database's max_hint_window",
        live: false,
        set: |c, v| put(&mut c.unknown_outcome_hold, v),
        get: |c| one(c.unknown_outcome_hold),
    },
    SettingKey {
        name: "partition-unit-size",
        group: Group::Policy,
        shape: Shape::Text,
        value_name: "SIZE",
        example: "256KiB",
        help: "Cache up to this much of a partition for reads of slices. `0B` means none",
        live: false,
        set: |c, v| put(&mut c.partition_unit_size, v),
        get: |c| one(c.partition_unit_size),
    },
];
