//! What a server answers while a connection is being set up, with Cassandra's texts: OPTIONS, STARTUP,
//! versions it does not speak, messages out of turn.

use crate::error::ProtocolError;
use crate::frame::notation::Put;
use crate::frame::{Direction, FrameError, Header, Opcode, Version};
use crate::message::Startup;
use crate::response::ErrorBody;

/// Where a connection stands. A session asks [`check`](Stage::check) about every request before it looks at
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Before STARTUP.
    Initial,
    /// The server asked for credentials.
    Authenticating,
    /// READY or AUTH_SUCCESS was sent.
    Ready,
}

impl Stage {
    /// Whether a request is in turn; if not, the error to answer with. The connection lives on.
    pub fn check(self, opcode: Opcode) -> Result<(), ProtocolError> {
        match (self, opcode) {
            (Stage::Initial, Opcode::Startup | Opcode::Options)
            | (Stage::Authenticating, Opcode::AuthResponse) => Ok(()),
            (Stage::Initial, other) => {
                Err(ProtocolError::new(format!("Unexpected message {other}, expecting STARTUP or OPTIONS")))
            }
            (Stage::Authenticating, other) => {
                Err(ProtocolError::new(format!("Unexpected message {other}, expecting SASL_RESPONSE")))
            }
            (Stage::Ready, Opcode::Startup) => {
                Err(ProtocolError::new("Unexpected message STARTUP, the connection is already initialized"))
            }
            (Stage::Ready, _) => Ok(()),
        }
    }
}

/// Checks the options of a STARTUP. No compression is supported yet, so asking for any is refused as an
/// unknown one is.
pub fn check_startup(startup: &Startup<'_>) -> Result<(), ProtocolError> {
    let cql_version = startup
        .option("CQL_VERSION")
        .ok_or_else(|| ProtocolError::new("Missing value CQL_VERSION in STARTUP message"))?;
    check_cql_version(cql_version)?;
    match startup.option("COMPRESSION") {
        Some(compression) => {
            Err(ProtocolError::new(format!("Unknown compression algorithm: {}", compression.to_lowercase())))
        }
        None => Ok(()),
    }
}

/// The binary protocol knows CQL 3 only.
fn check_cql_version(text: &str) -> Result<(), ProtocolError> {
    let release = text.split(['-', '+', '~']).next().unwrap_or_default();
    let numbers: Option<Vec<u32>> = release.split('.').map(|n| n.parse().ok()).collect();
    match numbers {
        Some(n) if (2..=4).contains(&n.len()) => {
            if (n[0], n[1]) < (2, 99) {
                return Err(ProtocolError::new(format!(
                    "CQL version {text} is not supported by the binary protocol (supported version are >= 3.0.0)"
                )));
            }
            Ok(())
        }
        _ => Err(ProtocolError::new(format!("Invalid version value: {text}"))),
    }
}

/// Appends the body of SUPPORTED: nothing but what this server can do itself, whatever the database offers.
pub fn supported(cql_version: &str, out: &mut Vec<u8>) {
    let versions: Vec<&str> = Version::ALL.iter().map(|v| v.name()).collect();
    let options: [(&str, &[&str]); 3] =
        [("CQL_VERSION", &[cql_version]), ("COMPRESSION", &[]), ("PROTOCOL_VERSIONS", &versions)];
    crate::response::encode_supported(&options, out);
}

/// The answer to a version that is not spoken here: in that version if it is an older one, else in the
/// highest spoken.
pub fn unsupported_version(number: u8) -> FrameError {
    let names: Vec<&str> = Version::ALL.iter().map(|v| v.name()).collect();
    let text = format!(
        "Invalid or unsupported protocol version ({number}); supported versions are ({})",
        names.join(", ")
    );
    let old = (1..Version::ALL[0].as_u8()).contains(&number);
    let version = if old { number } else { Version::MAX.as_u8() };
    FrameError { error: ProtocolError::new(text), stream: 0, version, fatal: true }
}

/// A whole ERROR envelope for any version number, with the eight-byte header of v1 and v2 for these.
pub(crate) fn error_envelope(version: u8, stream: i16, error: &ProtocolError) -> Vec<u8> {
    let mut body = Vec::new();
    ErrorBody::from(error).encode(&mut body);
    let mut envelope = vec![version | Direction::Response.bit(), 0];
    if version < 3 {
        envelope.put_byte(stream as u8);
    } else {
        envelope.put_raw(&stream.to_be_bytes());
    }
    envelope.put_byte(Opcode::Error as u8);
    envelope.put_int_len(body.len());
    envelope.put_raw(&body);
    envelope
}

/// Header of the answer to a request: same version and stream.
pub fn answer_to(request: &Header, opcode: Opcode) -> Header {
    Header::new(request.version, request.stream, opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn startup(options: &[(&str, &str)]) -> Result<(), String> {
        let mut body = Vec::new();
        Startup::encode(options, &mut body);
        check_startup(&Startup::parse(&body).unwrap()).map_err(|e| e.message.into_owned())
    }

    #[test]
    fn startup_needs_a_cql_version_from_3_on() {
        assert_eq!(startup(&[]), Err("Missing value CQL_VERSION in STARTUP message".into()));
        for good in ["3.0.0", "3.4.7", "3.0", "4.0.0-rc1", "2.99.0"] {
            assert_eq!(startup(&[("CQL_VERSION", good)]), Ok(()), "{good}");
        }
        assert_eq!(startup(&[("cql_version", "3.0.0")]), Ok(()), "names of options are taken in any case");
        assert_eq!(
            startup(&[("CQL_VERSION", "2.0.0")]),
            Err("CQL version 2.0.0 is not supported by the binary protocol (supported version are >= 3.0.0)"
                .into())
        );
        for bad in ["", "3", "x.y.z", "3.x", "99999999999.0.0", "1.2.3.4.5"] {
            assert_eq!(startup(&[("CQL_VERSION", bad)]), Err(format!("Invalid version value: {bad}")));
        }
    }

    #[test]
    fn startup_with_compression_is_refused() {
        assert_eq!(
            startup(&[("CQL_VERSION", "3.0.0"), ("COMPRESSION", "LZ4")]),
            Err("Unknown compression algorithm: lz4".into())
        );
    }

    #[test]
    fn a_startup_that_fills_its_strings_is_answered_all_the_same() {
        let long = "é".repeat(32_767);
        let mut body = Vec::new();
        Startup::encode(&[("CQL_VERSION", "3.0.0"), ("COMPRESSION", &long)], &mut body);
        let error = check_startup(&Startup::parse(&body).unwrap()).unwrap_err();
        let reply = FrameError { error, stream: 1, version: 4, fatal: false }.reply();
        assert!(reply.len() <= 9 + 4 + 2 + 65_535);
        ErrorBody::parse(Version::V4, &reply[9..]).expect("cut between characters");
    }

    #[test]
    fn supported_offers_what_this_server_does() {
        let mut body = Vec::new();
        supported("3.4.7", &mut body);
        let options = crate::frame::notation::Reader::new(&body).string_multimap().unwrap();
        let options: Vec<_> = options.iter().map(|(k, v)| (k, v.iter().collect::<Vec<_>>())).collect();
        assert_eq!(
            options,
            [
                ("CQL_VERSION", vec!["3.4.7"]),
                ("COMPRESSION", vec![]),
                ("PROTOCOL_VERSIONS", vec!["4/v4", "5/v5"]),
            ]
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
