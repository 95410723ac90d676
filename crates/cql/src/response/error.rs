//! ERROR: code, text, and what some codes add; section 9 of the v4 and section 8 of the v5
//! specification.

use std::net::IpAddr;

use crate::error::{ErrorCode, ProtocolError};
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result, StringList};
use crate::message::Consistency;

/// The message of an ERROR.
#[derive(Debug, Clone)]
pub struct ErrorBody<'a> {
    /// What happened.
    pub code: ErrorCode,
    /// Text for humans.
    pub message: &'a str,
    /// What the code adds.
    pub detail: ErrorDetail<'a>,
}

/// What an error's code adds to it.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are those of the specification")]
pub enum ErrorDetail<'a> {
    /// Nothing, or bytes that are not what the specification says: they are kept, and the code is
    /// still worth knowing.
    Other(&'a [u8]),
    Unavailable {
        consistency: Consistency,
        required: i32,
        alive: i32,
    },
    /// `contentions` is there in v5 when `write_type` is CAS.
    WriteTimeout {
        consistency: Consistency,
        received: i32,
        block_for: i32,
        write_type: &'a str,
        contentions: Option<u16>,
    },
    ReadTimeout {
        consistency: Consistency,
        received: i32,
        block_for: i32,
        data_present: bool,
    },
    ReadFailure {
        consistency: Consistency,
        received: i32,
        block_for: i32,
        failures: Failures<'a>,
        data_present: bool,
    },
    WriteFailure {
        consistency: Consistency,
        received: i32,
        block_for: i32,
        failures: Failures<'a>,
        write_type: &'a str,
    },
    FunctionFailure {
        keyspace: &'a str,
        function: &'a str,
        arg_types: StringList<'a>,
    },
    CasWriteUnknown {
        consistency: Consistency,
        received: i32,
        block_for: i32,
    },
    AlreadyExists {
        keyspace: &'a str,
        table: &'a str,
    },
    Unprepared {
        id: &'a [u8],
    },
}

/// How many replicas failed, and, in v5, which and why.
#[derive(Debug, Clone, Copy)]
pub struct Failures<'a> {
    /// How many.
    pub count: u32,
    reasons: &'a [u8],
}

impl<'a> Failures<'a> {
    fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self> {
        let count = reader.count("number of failures")?;
        if version < Version::V5 {
            return Ok(Self { count, reasons: &[] });
        }
        let ((), reasons) =
            reader.spanned(|r| (0..count).try_for_each(|_| next_reason(r).map(drop)))?;
        Ok(Self { count, reasons })
    }

    /// Failures as v4 knows them: their number. In v5 their nodes must be told too, so there it can
    /// only be 0.
    pub fn counted(count: u32) -> Self {
        Self { count, reasons: &[] }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_int_len(self.count as usize);
        out.put_raw(self.reasons);
    }

    /// The nodes that failed with their reason codes; none in v4.
    pub fn reasons(&self) -> impl Iterator<Item = (IpAddr, u16)> + use<'a> {
        let mut reader = Reader::new(self.reasons);
        std::iter::from_fn(move || next_reason(&mut reader).ok())
    }
}

fn next_reason(reader: &mut Reader<'_>) -> Result<(IpAddr, u16)> {
    Ok((reader.inetaddr()?, reader.short()?))
}

impl<'a> ErrorBody<'a> {
    /// An error that adds nothing.
    pub fn new(code: ErrorCode, message: &'a str) -> Self {
        Self { code, message, detail: ErrorDetail::Other(&[]) }
    }

    /// The error of an EXECUTE or BATCH whose prepared statement is not known.
    pub fn unprepared(message: &'a str, id: &'a [u8]) -> Self {
        Self { code: ErrorCode::Unprepared, message, detail: ErrorDetail::Unprepared { id } }
    }

    /// Parses a message.
    pub fn parse(version: Version, message: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(message);
        let code = ErrorCode::from_i32(reader.int()?);
        let message = reader.string()?;
        let rest = reader.rest();
        let detail =
            ErrorDetail::read(version, code, &mut reader).unwrap_or(ErrorDetail::Other(rest));
        Ok(Self { code, message, detail })
    }

    /// Appends the message. Text longer than a \[string\] can be is cut: it may quote what a client
    /// sent.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_int(self.code.as_i32());
        let end = self.message.floor_char_boundary(u16::MAX.into());
        out.put_string(&self.message[..end]);
        self.detail.write(out);
    }
}

impl<'a> From<&'a ProtocolError> for ErrorBody<'a> {
    fn from(error: &'a ProtocolError) -> Self {
        ErrorBody::new(error.code, &error.message)
    }
}

struct Acks {
    consistency: Consistency,
    received: i32,
    block_for: i32,
}

impl Acks {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            consistency: Consistency::from_u16(reader.short()?)?,
            received: reader.int()?,
            block_for: reader.int()?,
        })
    }

    fn write(consistency: Consistency, received: i32, block_for: i32, out: &mut Vec<u8>) {
        out.put_short(consistency as u16);
        out.put_int(received);
        out.put_int(block_for);
    }
}

impl<'a> ErrorDetail<'a> {
    fn read(version: Version, code: ErrorCode, reader: &mut Reader<'a>) -> Result<Self> {
        Ok(match code {
            ErrorCode::Unavailable => {
                let Acks { consistency, received: required, block_for: alive } =
                    Acks::read(reader)?;
                ErrorDetail::Unavailable { consistency, required, alive }
            }
            ErrorCode::WriteTimeout => {
                let Acks { consistency, received, block_for } = Acks::read(reader)?;
                let write_type = reader.string()?;
                let contentions = if reader.is_empty() { None } else { Some(reader.short()?) };
                ErrorDetail::WriteTimeout {
                    consistency,
                    received,
                    block_for,
                    write_type,
                    contentions,
                }
            }
            ErrorCode::ReadTimeout => {
                let Acks { consistency, received, block_for } = Acks::read(reader)?;
                let data_present = reader.byte()? != 0;
                ErrorDetail::ReadTimeout { consistency, received, block_for, data_present }
            }
            ErrorCode::ReadFailure => {
                let Acks { consistency, received, block_for } = Acks::read(reader)?;
                let failures = Failures::read(version, reader)?;
                let data_present = reader.byte()? != 0;
                ErrorDetail::ReadFailure {
                    consistency,
                    received,
                    block_for,
                    failures,
                    data_present,
                }
            }
            ErrorCode::WriteFailure => {
                let Acks { consistency, received, block_for } = Acks::read(reader)?;
                let failures = Failures::read(version, reader)?;
                let write_type = reader.string()?;
                ErrorDetail::WriteFailure { consistency, received, block_for, failures, write_type }
            }
            ErrorCode::FunctionFailure => ErrorDetail::FunctionFailure {
                keyspace: reader.string()?,
                function: reader.string()?,
                arg_types: reader.string_list()?,
            },
            ErrorCode::CasWriteUnknown => {
                let Acks { consistency, received, block_for } = Acks::read(reader)?;
                ErrorDetail::CasWriteUnknown { consistency, received, block_for }
            }
            ErrorCode::AlreadyExists => {
                ErrorDetail::AlreadyExists { keyspace: reader.string()?, table: reader.string()? }
            }
            ErrorCode::Unprepared => ErrorDetail::Unprepared { id: reader.short_bytes()? },
            _ => ErrorDetail::Other(reader.rest()),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            ErrorDetail::Other(bytes) => out.put_raw(bytes),
            ErrorDetail::Unavailable { consistency, required, alive } => {
                Acks::write(consistency, required, alive, out);
            }
            ErrorDetail::WriteTimeout {
                consistency,
                received,
                block_for,
                write_type,
                contentions,
            } => {
                Acks::write(consistency, received, block_for, out);
                out.put_string(write_type);
                if let Some(contentions) = contentions {
                    out.put_short(contentions);
                }
            }
            ErrorDetail::ReadTimeout { consistency, received, block_for, data_present } => {
                Acks::write(consistency, received, block_for, out);
                out.put_byte(data_present.into());
            }
            ErrorDetail::ReadFailure {
                consistency,
                received,
                block_for,
                failures,
                data_present,
            } => {
                Acks::write(consistency, received, block_for, out);
                failures.write(out);
                out.put_byte(data_present.into());
            }
            ErrorDetail::WriteFailure {
                consistency,
                received,
                block_for,
                failures,
                write_type,
            } => {
                Acks::write(consistency, received, block_for, out);
                failures.write(out);
                out.put_string(write_type);
            }
            ErrorDetail::FunctionFailure { keyspace, function, arg_types } => {
                out.put_string(keyspace);
                out.put_string(function);
                out.put_string_list(&arg_types.iter().collect::<Vec<_>>());
            }
            ErrorDetail::CasWriteUnknown { consistency, received, block_for } => {
                Acks::write(consistency, received, block_for, out);
            }
            ErrorDetail::AlreadyExists { keyspace, table } => {
                out.put_string(keyspace);
                out.put_string(table);
            }
            ErrorDetail::Unprepared { id } => out.put_short_bytes(id),
        }
    }
}
