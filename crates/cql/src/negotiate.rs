//! What a server answers while a connection is being set up: OPTIONS, STARTUP, versions it does not
//! speak, messages out of turn. Texts, streams and versions of the answers are those that Cassandra
//! 5.0 was seen to give.

use crate::error::ProtocolError;
use crate::frame::versions::names_up_to;
pub use crate::frame::versions::{is_beta, refused_version, unsupported_version};
use crate::frame::{Compression, Header, Opcode, Version};
use crate::message::Startup;

/// Where a connection stands. A session asks [`check`](Stage::check) about every request before it
/// looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Before STARTUP.
    Initial,
    /// After a STARTUP that was answered with an error.
    Refused,
    /// The server asked for credentials.
    Authenticating,
    /// READY or AUTH_SUCCESS was sent.
    Ready,
}

impl Stage {
    /// Whether a request is in turn; if not, the error to answer with, on
    /// [`answer_stream`](Stage::answer_stream). The connection lives on.
    pub fn check(self, opcode: Opcode) -> Result<(), ProtocolError> {
        match (self, opcode) {
            (Stage::Initial | Stage::Refused, Opcode::Startup | Opcode::Options)
            | (Stage::Authenticating, Opcode::AuthResponse) => Ok(()),
            (Stage::Initial | Stage::Refused, other) => Err(ProtocolError::new(format!(
                "Unexpected message {other}, expecting STARTUP or OPTIONS"
            ))),
            (Stage::Authenticating, other) => Err(ProtocolError::new(format!(
                "Unexpected message {other}, expecting SASL_RESPONSE"
            ))),
            (Stage::Ready, Opcode::Startup) => Err(ProtocolError::new(
                "Unexpected message STARTUP, the connection is already initialized",
            )),
            (Stage::Ready, _) => Ok(()),
        }
    }

    /// The stream on which a request out of turn is answered: 0 before any STARTUP, else its own.
    pub fn answer_stream(self, request: i16) -> i16 {
        if self == Stage::Initial { 0 } else { request }
    }
}

/// Checks the options of a STARTUP of that version; gives the compression that it asks for.
///
/// # Errors
/// In a server's words.
pub fn check_startup(
    startup: &Startup<'_>,
    version: Version,
) -> Result<Option<Compression>, ProtocolError> {
    let cql_version = startup
        .option("CQL_VERSION")
        .ok_or_else(|| ProtocolError::new("Missing value CQL_VERSION in STARTUP message"))?;
    check_cql_version(cql_version)?;
    startup.option("COMPRESSION").map(|name| Compression::named(name, version)).transpose()
}

/// The binary protocol knows CQL 3 only.
fn check_cql_version(text: &str) -> Result<(), ProtocolError> {
    let Some((release, is_early)) = parse_cql_version(text) else {
        return Err(ProtocolError::new(format!("Invalid version value: {text}")));
    };
    if release < [2, 99, 0] || release == [2, 99, 0] && is_early {
        return Err(ProtocolError::new(format!(
            "CQL version {text} is not supported by the binary protocol (supported version are >= 3.0.0)"
        )));
    }
    Ok(())
}

/// Major, minor and patch of a version, and whether it is one before that release (`-beta1`). At
/// least two numbers, then possibly `-` or `+` and more.
fn parse_cql_version(text: &str) -> Option<([u32; 3], bool)> {
    let (release, suffix) = match text.find(['-', '+']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || "-+._".contains(c);
    if suffix.len() == 1 || !suffix.chars().all(valid) {
        return None;
    }
    let mut numbers = [0; 3];
    let mut count = 0;
    for (i, number) in release.split('.').enumerate() {
        let parsed = number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok())??;
        if let Some(place) = numbers.get_mut(i) {
            *place = parsed;
        }
        count += 1;
    }
    (count >= 2).then_some((numbers, suffix.starts_with('-')))
}

/// Appends the body of SUPPORTED: nothing but what this server can do itself, whatever the database
/// offers.
pub fn supported(cql_version: &str, highest: Version, out: &mut Vec<u8>) {
    let options: [(&str, &[&str]); 3] = [
        ("PROTOCOL_VERSIONS", &names_up_to(highest)),
        ("COMPRESSION", Compression::NAMES),
        ("CQL_VERSION", &[cql_version]),
    ];
    crate::response::encode_supported(&options, out);
}

/// Header of the answer to a request: same version and stream.
pub fn answer_to(request: &Header, opcode: Opcode) -> Header {
    Header::new(request.version, request.stream, opcode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Flags, FrameError};
    use crate::response::ErrorBody;

    fn startup(options: &[(&str, &str)]) -> Result<(), String> {
        let mut body = Vec::new();
        Startup::encode(options, &mut body);
        check(&body, Version::V4).map(drop)
    }

    fn check(body: &[u8], version: Version) -> Result<Option<Compression>, String> {
        check_startup(&Startup::parse(body).unwrap(), version).map_err(|e| e.message.into_owned())
    }

    #[test]
    fn startup_needs_a_cql_version_from_3_on() {
        assert_eq!(startup(&[]), Err("Missing value CQL_VERSION in STARTUP message".into()));
        // What 5.0.x was seen to say to each of these.
        for good in [
            "3.0.0",
            "3.4.7",
            "3.0",
            "03.0",
            "4.0.0-rc1",
            "3.0-beta",
            "3.0.0+b",
            "3.0.0.0.0.0",
            "2.99.0",
        ] {
            assert_eq!(startup(&[("CQL_VERSION", good)]), Ok(()), "{good}");
        }
        assert_eq!(
            startup(&[("cql_version", "3.0.0")]),
            Ok(()),
            "names of options are taken in any case"
        );
        for old in ["2.0.0", "1.2.3.4.5", "2.98.99", "2.99.0-beta"] {
            let text = "is not supported by the binary protocol (supported version are >= 3.0.0)";
            assert_eq!(startup(&[("CQL_VERSION", old)]), Err(format!("CQL version {old} {text}")));
        }
        for bad in [
            "",
            "3",
            "x",
            "3.x",
            "3.0.",
            "3.0 ",
            "99999999999.0.0",
            "3.0.x",
            "-3.0.0",
            "3.0.0_x",
            "3.0.0~x",
            " 3.0",
            "3.0x",
            "3..0",
            "3.0.0 x",
            "3.0.0?",
            "+3.+0",
            "3.0-",
        ] {
            assert_eq!(
                startup(&[("CQL_VERSION", bad)]),
                Err(format!("Invalid version value: {bad}"))
            );
        }
    }

    #[test]
    fn startup_may_ask_for_what_its_version_has() {
        let asks = |name, version| {
            let mut body = Vec::new();
            Startup::encode(&[("CQL_VERSION", "3.0.0"), ("COMPRESSION", name)], &mut body);
            check(&body, version)
        };
        assert_eq!(asks("LZ4", Version::V5), Ok(Some(Compression::Lz4)));
        assert_eq!(asks("snappy", Version::V3), Ok(Some(Compression::Snappy)));
        // What 5.0 was seen to say to these two.
        assert_eq!(
            asks("Snappy", Version::V5),
            Err("Snappy compression is not supported in protocol V5".into())
        );
        assert_eq!(asks("Zstd", Version::V4), Err("Unknown compression algorithm: zstd".into()));
    }

    #[test]
    fn a_startup_that_fills_its_strings_is_answered_all_the_same() {
        let long = "é".repeat(32_767);
        let mut body = Vec::new();
        Startup::encode(&[("CQL_VERSION", "3.0.0"), ("COMPRESSION", &long)], &mut body);
        let error = check_startup(&Startup::parse(&body).unwrap(), Version::V4).unwrap_err();
        let reply =
            FrameError { error, stream: 1, version: 4, flags: Flags::NONE, fatal: false }.reply();
        assert!(reply.len() <= 9 + 4 + 2 + 65_535);
        ErrorBody::parse(Version::V4, &reply[9..]).expect("cut between characters");
    }

    #[test]
    fn supported_offers_what_this_server_does() {
        let mut body = Vec::new();
        supported("3.4.7", Version::V5, &mut body);
        let options = crate::frame::notation::Reader::new(&body).string_multimap().unwrap();
        let options: Vec<_> =
            options.iter().map(|(k, v)| (k, v.iter().collect::<Vec<_>>())).collect();
        assert_eq!(
            options,
            [
                ("PROTOCOL_VERSIONS", vec!["3/v3", "4/v4", "5/v5"]),
                ("COMPRESSION", vec!["snappy", "lz4"]),
                ("CQL_VERSION", vec!["3.4.7"]),
            ]
        );
    }

    #[test]
    fn a_version_above_what_the_database_speaks_is_refused_in_its_highest() {
        let refused = unsupported_version(5, Version::V4);
        assert_eq!(
            (refused.version, &*refused.error.message),
            (
                4,
                "Invalid or unsupported protocol version (5); supported versions are (3/v3, 4/v4, 5/v5-beta)"
            )
        );
    }

    #[test]
    fn a_version_in_the_making_is_refused_as_one_unless_it_is_asked_for() {
        for (number, highest, text) in [
            (
                6,
                Version::V5,
                "Beta version of the protocol used (6/v6-beta), but USE_BETA flag is unset",
            ),
            (
                5,
                Version::V4,
                "Beta version of the protocol used (5/v5-beta), but USE_BETA flag is unset",
            ),
        ] {
            let refused = refused_version(number, Flags::NONE, highest);
            assert_eq!((refused.version, refused.flags), (number, Flags::USE_BETA));
            assert_eq!(refused.error.message, text);
            assert_eq!(
                refused_version(number, Flags::USE_BETA, highest),
                unsupported_version(number, highest)
            );
        }
        assert_eq!(
            refused_version(7, Flags::NONE, Version::V5),
            unsupported_version(7, Version::V5)
        );
    }

    #[test]
    fn messages_out_of_turn_are_told_what_is_expected() {
        let said = |stage: Stage, opcode| stage.check(opcode).map_err(|e| e.message.into_owned());
        assert_eq!(said(Stage::Initial, Opcode::Options), Ok(()));
        assert_eq!(said(Stage::Initial, Opcode::Startup), Ok(()));
        assert_eq!(
            said(Stage::Initial, Opcode::Query),
            Err("Unexpected message QUERY, expecting STARTUP or OPTIONS".into())
        );
        assert_eq!(said(Stage::Refused, Opcode::Startup), Ok(()), "one may try again");
        assert_eq!((Stage::Initial.answer_stream(7), Stage::Refused.answer_stream(7)), (0, 7));
        assert_eq!(said(Stage::Refused, Opcode::Query), said(Stage::Initial, Opcode::Query));
        assert_eq!(said(Stage::Authenticating, Opcode::AuthResponse), Ok(()));
        assert_eq!(
            said(Stage::Authenticating, Opcode::Options),
            Err("Unexpected message OPTIONS, expecting SASL_RESPONSE".into())
        );
        assert_eq!(said(Stage::Ready, Opcode::Execute), Ok(()));
        assert_eq!(
            said(Stage::Ready, Opcode::Startup),
            Err("Unexpected message STARTUP, the connection is already initialized".into())
        );
    }
}
