//! Addresses: where to listen, where the database is, and which address clients are told.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use super::Invalid;

/// The port a CQL database listens on when nothing else is said.
const CQL_PORT: u16 = 9042;

/// A contact point of the database: host name or IP address, and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A host name or an IP address, an IPv6 address without brackets.
    pub host: String,
    /// The port; 9042 when none was written.
    pub port: u16,
}

impl HostPort {
    /// The address, when the host is an IP address and needs no look-up.
    pub fn literal(&self) -> Option<SocketAddr> {
        self.host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, self.port))
    }
}

impl FromStr for HostPort {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(HostPort { host: ip.to_string(), port: CQL_PORT });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(HostPort { host: address.ip().to_string(), port: address.port() });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse::<u16>().ok()),
            None => (text, Some(CQL_PORT)),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        match port {
            Some(port) if !host.is_empty() && port != 0 && host.chars().all(is_name) => {
                Ok(HostPort { host: host.into(), port })
            }
            _ => Err(Invalid::new(format!(
                "`{text}` is not the address of a database: write `host:port`, as in `127.0.0.1:9042` or `[::1]:9042`"
            ))),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The name of a host, in any case, without port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

impl HostName {
    /// Whether `name` is this one.
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

impl FromStr for HostName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_address = text.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified());
        match is_address || !text.is_empty() && text.chars().all(is_name) {
            true => Ok(HostName(text.to_owned())),
            false => Err(Invalid::new(format!(
                "`{text}` is not the name of a host: write it without scheme and port, as in `cache-1.example`"
            ))),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What Afterglow says of itself to drivers: an IP address (the tables of the database have no host
/// names), perhaps a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertise {
    /// Where drivers reach this instance.
    pub ip: IpAddr,
    /// The port they use; the CQL front end's own when none was written.
    pub port: Option<u16>,
}

impl FromStr for Advertise {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parsed = match text.parse::<IpAddr>() {
            Ok(ip) => Some(Advertise { ip, port: None }),
            Err(_) => text
                .parse::<SocketAddr>()
                .ok()
                .map(|a| Advertise { ip: a.ip(), port: Some(a.port()) }),
        };
        match parsed {
            Some(a) if !a.ip.is_unspecified() && a.port != Some(0) => Ok(a),
            Some(_) => {
                Err(Invalid::new(format!("`{text}` is no address that a client could connect to")))
            }
            None => Err(Invalid::new(format!(
                "`{text}` is not an IP address: write the one drivers reach this instance at, as in `10.0.0.5` or `10.0.0.5:9042`"
            ))),
        }
    }
}

impl fmt::Display for Advertise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

/// Reads an address to listen on.
///
/// # Errors
/// Says what to write when it is not an IP address and a port.
pub fn parse_listen(text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().and_then(|p| p.parse::<u16>().ok()).unwrap_or(9043);
        Invalid::new(format!(
            "`{text}` is not an address to listen on: write IP address and port, as in `127.0.0.1:{port}` (this machine only) \
             or `0.0.0.0:{port}` (every network)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_point_is_a_name_or_an_address() {
        for (text, shown) in [
            ("127.0.0.1:9042", "127.0.0.1:9042"),
            ("10.0.0.7", "10.0.0.7:9042"),
            ("db-1.example:19042", "db-1.example:19042"),
            ("cassandra", "cassandra:9042"),
            ("[::1]:9999", "[::1]:9999"),
            ("::1", "[::1]:9042"),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(shown.parse(), Ok(parsed));
        }
        for bad in
            ["", ":9042", "host:", "host:0", "host:70000", "a b:1", "http://db:9042", "[::1:9042"]
        {
            let message = bad.parse::<HostPort>().unwrap_err().0;
            assert!(message.contains("`127.0.0.1:9042`"), "{bad}: {message}");
        }
    }

    #[test]
    fn a_host_has_a_name_and_no_port() {
        let name: HostName = "Cache-1.example".parse().unwrap();
        assert!(name.is("cache-1.EXAMPLE") && !name.is("cache-1.example.org"));
        assert!("10.0.0.5".parse::<HostName>().is_ok() && "fe80::1".parse::<HostName>().is_ok());
        for bad in ["", "http://x", "x:9180", "a b", "*"] {
            assert!(bad.parse::<HostName>().unwrap_err().0.contains("`cache-1.example`"), "{bad}");
        }
    }

    #[test]
    fn only_an_ip_address_needs_no_look_up() {
        assert_eq!(
            "[::1]:9".parse::<HostPort>().unwrap().literal(),
            Some("[::1]:9".parse().unwrap())
        );
        assert_eq!("localhost:9".parse::<HostPort>().unwrap().literal(), None);
    }

    #[test]
    fn an_advertised_address_can_be_connected_to() {
        for text in ["10.0.0.5", "10.0.0.5:9042", "[::1]:9042", "::1"] {
            assert_eq!(text.parse::<Advertise>().unwrap().to_string(), text);
        }
        for (bad, hint) in
            [("0.0.0.0", "connect"), ("10.0.0.5:0", "connect"), ("db.example", "`10.0.0.5`")]
        {
            assert!(bad.parse::<Advertise>().unwrap_err().0.contains(hint), "{bad}");
        }
    }

    #[test]
    fn a_port_alone_is_told_both_ways_to_mean_it() {
        for text in [":9999", "9999", "localhost:9999"] {
            let message = parse_listen(text).unwrap_err().0;
            assert!(
                message.contains("`127.0.0.1:9999`") && message.contains("`0.0.0.0:9999`"),
                "{message}"
            );
        }
    }
}
