//! Counters of the links to other instances of a ring.

use super::{
    Counter, Exposition, Family, Gauge, Kind, Label, LinkDrop, LinkEnd, LinkHandshakeFailure,
};

/// The counters of all links; one for the process.
#[derive(Debug, Default)]
pub struct RingLinkMetrics {
    /// Links that are open.
    pub up: Gauge,
    /// Links that were opened.
    pub opened: Counter,
    /// Links that ended.
    pub ended: Family<LinkEnd, Counter>,
    /// Links that were not opened.
    pub failed: Family<LinkHandshakeFailure, Counter>,
    /// Connections whose other side has not proven the secret yet.
    pub unproven: Gauge,
    /// Messages that came.
    pub messages_in: Counter,
    /// Messages that were sent.
    pub messages_out: Counter,
    /// Bytes that came on open links, as on the wire.
    pub bytes_in: Counter,
    /// Bytes that were sent on open links, as on the wire.
    pub bytes_out: Counter,
    /// Messages that were not sent.
    pub dropped: Family<LinkDrop, Counter>,
}

impl RingLinkMetrics {
    /// Adds all of it to the text.
    pub fn expose(&self, out: &mut Exposition) {
        let level = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or(0);
        let help = "Open links to other instances of the ring.";
        out.single("afterglow_ring_link_up", Kind::Gauge, help, level(&self.up));
        let help = "Connections of the ring whose other side has not proven the secret yet.";
        out.single("afterglow_ring_link_unproven", Kind::Gauge, help, level(&self.unproven));
        let help = "Links to other instances of the ring that were opened.";
        out.single("afterglow_ring_link_opened_total", Kind::Counter, help, self.opened.get());
        family(
            out,
            "afterglow_ring_link_closed_total",
            "Links to other instances of the ring that ended, by reason.",
            &self.ended,
        );
        family(
            out,
            "afterglow_ring_link_handshakes_failed_total",
            "Links to other instances of the ring that were not made, by reason.",
            &self.failed,
        );
        let ways = |out: &mut Exposition, name: &str, help: &str, came: u64, sent: u64| {
            out.header(name, Kind::Counter, help);
            out.sample(name, &[("direction", "in")], came);
            out.sample(name, &[("direction", "out")], sent);
        };
        let help = "Messages from and to other instances of the ring.";
        let (came, sent) = (self.messages_in.get(), self.messages_out.get());
        ways(out, "afterglow_ring_link_messages_total", help, came, sent);
        let help = "Bytes on the wire from and to other instances of the ring.";
        let (came, sent) = (self.bytes_in.get(), self.bytes_out.get());
        ways(out, "afterglow_ring_link_bytes_total", help, came, sent);
        family(
            out,
            "afterglow_ring_link_dropped_total",
            "Messages to other instances of the ring that were not sent, by reason.",
            &self.dropped,
        );
    }
}

fn family<L: Label>(out: &mut Exposition, name: &str, help: &str, counts: &Family<L, Counter>) {
    out.header(name, Kind::Counter, help);
    for &label in L::ALL {
        out.sample(name, &[(L::NAME, label.word())], counts.of(label).get());
    }
}
