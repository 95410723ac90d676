//! Options that the tools share: where to connect, and how.

use std::{path::PathBuf, str::FromStr, time::Duration};

use super::{ConnectOptions, CqlError, trusting};
use afterglow_cql::{frame::Version, message::Consistency};

/// Where to connect and how.
#[derive(clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct Target {
    /// CQL addresses, HOST:PORT, separated by commas; connections go round them.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:9042")]
    pub hosts: Vec<String>,
    /// Protocol version: 4 or 5.
    #[arg(long, default_value = "4", value_parser = version)]
    pub protocol: Version,
    /// Consistency level of reads and writes.
    #[arg(long, default_value = "local_quorum", value_parser = consistency)]
    pub consistency: Consistency,
    /// User, for servers that require one.
    #[arg(long, requires = "password")]
    pub user: Option<String>,
    /// Password of the user.
    #[arg(long, env = "CQL_PASSWORD", hide_env_values = true, requires = "user")]
    pub password: Option<String>,
    /// Speak TLS with servers whose certificate this CA (PEM) has signed, for the host given.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}

impl Target {
    /// The options of a connection to it.
    ///
    /// # Errors
    /// The CA's file cannot be used.
    pub fn connect(&self) -> Result<ConnectOptions, CqlError> {
        let credentials = self.user.clone().zip(self.password.clone());
        let tls = self.tls_ca.as_deref().map(trusting).transpose()?;
        Ok(ConnectOptions { version: self.protocol, credentials, tls, ..ConnectOptions::default() })
    }
}

fn version(text: &str) -> Result<Version, String> {
    let number = text.trim_start_matches('v').parse().ok();
    number.and_then(Version::from_u8).ok_or_else(|| "speaks versions 3, 4 and 5".to_owned())
}

fn consistency(text: &str) -> Result<Consistency, String> {
    let known = || {
        Consistency::ALL
            .iter()
            .map(|c| c.name().to_ascii_lowercase())
            .collect::<Vec<_>>()
            .join(", ")
    };
    Consistency::ALL
        .iter()
        .copied()
        .find(|c| c.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| format!("one of {}", known()))
}

/// `250ms`, `30s`, `5m`, `1h`; a bare number is refused, as it means different things to different
/// people.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a number and a unit: 250ms, 30s, 5m or 1h".to_owned()),
    };
    let number = f64::from_str(number).map_err(|_| "not a number".to_owned())?;
    Ok(Duration::from_secs_f64(number * scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(duration("15").is_err() && duration("s").is_err() && duration("-1s").is_err());
    }

    #[test]
    fn consistency_levels_have_their_usual_names() {
        assert_eq!(consistency("local_quorum"), Ok(Consistency::LocalQuorum));
        assert_eq!(consistency("ONE"), Ok(Consistency::One));
        assert!(consistency("most").unwrap_err().contains("quorum"));
    }
}
