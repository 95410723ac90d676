//! The settings of TLS around the CQL front end.

use crate::config::{
    key::{Group, SettingKey, Shape},
    put::{one, paths, put_optional_path, put_switch},
};

pub(super) const KEYS: &[SettingKey] = &[
    SettingKey {
        name: "cql-tls-cert",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/cql-cert.pem",
        help: "Require TLS on the CQL front end's port, with this certificate chain (PEM). Clients \
               without TLS are turned away. SIGHUP reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.cql_tls_cert, v),
        get: |c| paths(c.cql_tls_cert.as_ref()),
    },
    SettingKey {
        name: "cql-tls-key",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/cql-key.pem",
        help: "The key of --cql-tls-cert (PEM). Only its owner may read it (mode 0600), or it is \
               root's with mode 0440 and the server's group. SIGHUP reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.cql_tls_key, v),
        get: |c| paths(c.cql_tls_key.as_ref()),
    },
    SettingKey {
        name: "cql-tls-client-ca",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/clients-ca.pem",
        help: "Turn away clients of the CQL front end without a certificate of this CA (PEM). \
               SIGHUP reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.cql_tls_client_ca, v),
        get: |c| paths(c.cql_tls_client_ca.as_ref()),
    },
    SettingKey {
        name: "backend-tls-ca",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/database-ca.pem",
        help: "Speak TLS on every connection to the database. Its nodes must have certificates of \
               this CA (PEM). SIGHUP reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.backend_tls_ca, v),
        get: |c| paths(c.backend_tls_ca.as_ref()),
    },
    SettingKey {
        name: "backend-tls-cert",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/backend-cert.pem",
        help: "The certificate chain (PEM) to show a database that asks for one. SIGHUP reads it \
               again",
        live: false,
        set: |c, v| put_optional_path(&mut c.backend_tls_cert, v),
        get: |c| paths(c.backend_tls_cert.as_ref()),
    },
    SettingKey {
        name: "backend-tls-key",
        group: Group::CqlTls,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/backend-key.pem",
        help: "The key of --backend-tls-cert (PEM). Only its owner may read it (mode 0600), or it \
               is root's with mode 0440 and the server's group. SIGHUP reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.backend_tls_key, v),
        get: |c| paths(c.backend_tls_key.as_ref()),
    },
    SettingKey {
        name: "backend-tls-verify-host-name",
        group: Group::CqlTls,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Require that a node's certificate names the host or IP address that Afterglow \
               connects to. With false any certificate of --backend-tls-ca will do",
        live: false,
        set: |c, v| put_switch(&mut c.backend_tls_verify_host_name, v),
        get: |c| one(c.backend_tls_verify_host_name),
    },
];
