//! Where the cache lives on flash: `PATH:SIZE`.

use std::{fmt, path::PathBuf, str::FromStr};

use super::{Invalid, Size};

/// A file or a block device to cache on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlashSpec {
    /// The file (made when it does not exist) or the block device.
    pub path: PathBuf,
    /// How much of it to use; `None`, written `all`, for the whole of a block device.
    pub size: Option<Size>,
}

impl FromStr for FlashSpec {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (path, size) = text.rsplit_once(':').unwrap_or((text, ""));
        if path.is_empty() || size.is_empty() {
            return Err(Invalid::new(format!(
                "`{text}` does not say both where and how much: write `PATH:SIZE`, as in `/mnt/nvme/cache:100GiB`, \
                 or `/dev/nvme1n1:all` for a whole block device"
            )));
        }
        let size = match size {
            "all" => None,
            size => Some(size.parse()?),
        };
        Ok(FlashSpec { path: path.into(), size })
    }
}

impl fmt::Display for FlashSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{}:{size}", self.path.display()),
            None => write!(f, "{}:all", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_behind_the_last_colon() {
        let spec: FlashSpec = "/dev/disk/by-path/pci-0000:01:00.0:2TiB".parse().unwrap();
        assert_eq!(spec.path, PathBuf::from("/dev/disk/by-path/pci-0000:01:00.0"));
        assert_eq!(spec.size, Some(Size::gib(2048)));
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let whole: FlashSpec = "/dev/nvme1n1:all".parse().unwrap();
        assert_eq!((whole.size, whole.to_string().as_str()), (None, "/dev/nvme1n1:all"));
    }

    #[test]
    fn a_refusal_says_what_is_missing() {
        for (text, hint) in [
            ("/mnt/cache", "`PATH:SIZE`"),
            (":4GiB", "`PATH:SIZE`"),
            ("/mnt/cache:", "`PATH:SIZE`"),
            ("/c:4G", "`4GiB`"),
        ] {
            let message = text.parse::<FlashSpec>().unwrap_err().0;
            assert!(message.contains(hint), "{text}: {message}");
        }
    }
}
