//! The settings of the ring.

use crate::config::{
    key::{Group, SettingKey, Shape},
    put::{one, paths, put, put_listen, put_optional_path, put_switch, refused, some},
    ring::ring_address,
};

pub(super) const KEYS: &[SettingKey] = &[
    SettingKey {
        name: "ring-address",
        group: Group::Ring,
        shape: Shape::Text,
        value_name: "ADDRESS",
        example: "10.0.0.5:7946",
        help: "Be one of several instances that cache as one, and listen here for the others. \
               Instances over one database with the same --ring-name form a ring by themselves. \
               Needs --cql and --ring-secret",
        live: false,
        set: |c, v| put_listen(&mut c.ring_address, v),
        get: |c| some(c.ring_address),
    },
    SettingKey {
        name: "ring-secret",
        group: Group::Ring,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/ring-secret",
        help: "File with the secret that all instances of the ring share, 32 bytes at least: `head \
               -c 32 /dev/urandom | base64 > FILE`. Only its owner may read it (mode 0600), or it \
               is root's with mode 0440 and the server's group",
        live: false,
        set: |c, v| put_optional_path(&mut c.ring_secret, v),
        get: |c| paths(c.ring_secret.as_ref()),
    },
    SettingKey {
        name: "ring-advertise",
        group: Group::Ring,
        shape: Shape::Text,
        value_name: "HOST:PORT",
        example: "cache-1.example.org:7946",
        help: "Where other instances reach this one. Needed if --ring-address listens on every \
               network. Without it: the address of --ring-address",
        live: false,
        set: |c, v| {
            c.ring_advertise = Some(ring_address(&v[0]).map_err(refused(0))?);
            Ok(())
        },
        get: |c| some(c.ring_advertise.as_ref()),
    },
    SettingKey {
        name: "ring-name",
        group: Group::Ring,
        shape: Shape::Text,
        value_name: "NAME",
        example: "afterglow",
        help: "Name of the ring. There is one for each data centre and name, and only one of them \
               may cache `exclusive` tables",
        live: false,
        set: |c, v| put(&mut c.ring_name, v),
        get: |c| one(&c.ring_name),
    },
    SettingKey {
        name: "ring-weight",
        group: Group::Ring,
        shape: Shape::Number,
        value_name: "NUMBER",
        example: "100",
        help: "This instance's part of the rows, beside the weights of the others: its flash in \
               GiB, say. An instance of weight 0 owns none and answers for all",
        live: false,
        set: |c, v| put(&mut c.ring_weight, v),
        get: |c| one(c.ring_weight),
    },
    SettingKey {
        name: "ring-zone",
        group: Group::Ring,
        shape: Shape::Text,
        value_name: "NAME",
        example: "rack-1",
        help: "The failure domain of this instance, as `afterglow ring status` shows it",
        live: false,
        set: |c, v| put(&mut c.ring_zone, v),
        get: |c| one(&c.ring_zone),
    },
    SettingKey {
        name: "ring-show-replicas",
        group: Group::Ring,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Show drivers of a ring how many replicas the database has. Without it their own \
               connections are shown one, the owner, so that drivers which shuffle replicas send \
               requests to it alone",
        live: false,
        set: |c, v| put_switch(&mut c.ring_show_replicas, v),
        get: |c| one(c.ring_show_replicas),
    },
];
