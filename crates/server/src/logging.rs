//! Structured log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use crate::config::{Config, LogFilter, LogFormat};

/// The running log; lets the filter be changed.
pub struct Logging {
    filter: reload::Handle<EnvFilter, Registry>,
}

fn filter(wanted: &LogFilter) -> EnvFilter {
    EnvFilter::try_new(wanted.directives()).unwrap_or_else(|_| EnvFilter::new("info"))
}

impl Logging {
    /// Starts logging for the whole process. Only the first call in a process has an effect.
    pub fn start(config: &Config) -> Self {
        let (filter, handle) = reload::Layer::new(filter(&config.log_level));
        let registry = tracing_subscriber::registry().with(filter);
        let started = match config.log_format {
            LogFormat::Text => {
                let ansi = std::io::stderr().is_terminal();
                registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(ansi)).try_init()
            }
            LogFormat::Json => {
                let json = fmt::layer().json().flatten_event(true).with_current_span(false);
                registry.with(json.with_writer(std::io::stderr)).try_init()
            }
        };
        if let Err(e) = started {
            eprintln!("logging was already started: {e}");
        }
        Logging { filter: handle }
    }

    /// Writes other lines from now on.
    pub fn set(&self, wanted: &LogFilter) {
        if let Err(e) = self.filter.reload(filter(wanted)) {
            tracing::error!("the log level cannot be changed: {e}");
        }
    }
}
