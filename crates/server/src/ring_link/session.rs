//! A link from its connection to its end, on one reactor.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_ring::{Frame, Hello, Link, MemberId};
use compio::net::TcpStream;
use futures_util::future::{Either, select};
use ring_crypto::rand::{SecureRandom, SystemRandom};

use super::config::Tuning;
use super::fault::LinkFault;
use super::handshake::{Handshake, MAX_UNPROVEN};
use super::live::LiveLink;
use super::payload::Payload;
use super::read::{self, LinkSource};
use super::registry::{Registered, Registry, Unproven};
use super::seal::{NONCE, Role, Sealed};
use super::write;

/// How long the other side has to close a connection that this instance ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Whom a connection is with.
pub struct Call {
    /// Where it is, for the log.
    pub place: String,
    /// The member that was dialled; `None`: the other side has dialled.
    pub wanted: Option<MemberId>,
    /// Its place among those that have proven nothing, if it has dialled.
    pub unproven: Option<Unproven>,
}

/// How a session ended.
pub struct SessionEnd {
    /// For how long the link was open, if it was.
    pub up: Option<Duration>,
}

/// Opens a link and serves it until it ends. Failures are counted and logged here.
pub async fn run(registry: &Arc<Registry>, stream: TcpStream, call: Call) -> SessionEnd {
    let Call { place, wanted, unproven } = call;
    let _hangup = LinkHangup(stream.clone());
    let opening = open(registry, stream, &place, wanted);
    let opened = compio::time::timeout(registry.tuning.handshake, opening).await;
    let opened = opened.unwrap_or(Err(LinkFault::Late)).and_then(|opened| {
        let registered = registry.register(opened.link)?;
        Ok((opened.source, opened.keys, registered))
    });
    drop(unproven);
    let (source, keys, mut registered) = match opened {
        Ok(opened) => opened,
        Err(fault) => {
            registry.failed(wanted, &place, &fault);
            return SessionEnd { up: None };
        }
    };
    let (link, since) = (registered.link.clone(), Instant::now());
    tracing::info!(peer = %place, member = format_args!("{:016x}", link.peer.0), version = link.version, dialled = wanted.is_some(), "a link of the ring is up");
    let why = serve(registry, source, keys, &registered).await;
    tracing::info!(peer = %place, member = format_args!("{:016x}", link.peer.0), reason = %why, "a link of the ring is down");
    if !matches!(why, LinkFault::Lost(_)) {
        registry.complain(wanted.is_some(), &place, &why);
    }
    registered.why = Some(why);
    SessionEnd { up: Some(since.elapsed()) }
}

/// Reads, writes and watches until one of them ends.
async fn serve(
    registry: &Arc<Registry>,
    source: LinkSource,
    keys: Sealed,
    registered: &Registered,
) -> LinkFault {
    let link = &registered.link;
    let stream = source.stream.clone();
    // What has come is read before the time is looked at: the process may have stood still.
    let reads = pin!(read::run(source, keys.opener, link, registry));
    let writes = pin!(write::run(stream.clone(), link, keys.sealer, &registry.metrics));
    let watches = pin!(watch(link, &registry.tuning));
    match select(reads, select(writes, watches)).await {
        Either::Left((why, _)) => why,
        Either::Right((Either::Left((LinkFault::Stopped, _)), reads)) => {
            // To close while something of the other side is unread takes back what was written.
            let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Write);
            let _ = compio::time::timeout(FAREWELL, reads).await;
            LinkFault::Stopped
        }
        Either::Right((Either::Left((why, _)) | Either::Right((why, _)), _)) => why,
    }
}

/// Says signs of life, until the other side gives none.
async fn watch(link: &LiveLink, tuning: &Tuning) -> LinkFault {
    loop {
        // Not before there may be something to do: there are many links, and most are idle. A sign
        // of life that waits to be written is not waited for.
        let rest = tuning.alive.saturating_sub(link.idle());
        compio::time::sleep(rest.max(tuning.alive / 4)).await;
        if link.silence() > tuning.silence {
            return LinkFault::Silent;
        }
        if link.stands_still() > tuning.stall {
            return LinkFault::Stalled;
        }
        if link.idle() >= tuning.alive {
            link.say_alive();
        }
    }
}

struct Opened {
    source: LinkSource,
    keys: Sealed,
    link: Arc<LiveLink>,
}

/// Handshake and HELLOs. The initiator says HELLO only to whom it has dialled: nobody else takes
/// the link for one that is open.
async fn open(
    registry: &Arc<Registry>,
    stream: TcpStream,
    place: &str,
    wanted: Option<MemberId>,
) -> Result<Opened, LinkFault> {
    let mut source = LinkSource::new(stream);
    let role = if wanted.is_some() { Role::Initiator } else { Role::Responder };
    let mut keys = shake_hands(registry, &mut source, role).await?;
    let ours = registry.config.hello;
    let (mut link, first) = Link::open(ours);
    let mut out = Vec::new();
    keys.sealer.seal(&mut out, |out| Payload::Control(first).put(out));
    if role == Role::Responder {
        send(&mut source.stream, std::mem::take(&mut out)).await?;
    }
    let theirs = hello(&mut source, &mut keys).await?;
    check(&ours, &theirs, wanted, &registry.config.address)?;
    send(&mut source.stream, out).await?;
    link.receive(&Frame::Hello(theirs)).map_err(LinkFault::Rules)?;
    let record = registry.record(theirs.member, place);
    let live = LiveLink::new((theirs.member, theirs.life), link, record, &registry.tuning);
    Ok(Opened { source, keys, link: Arc::new(live) })
}

/// Waits for HELLO.
async fn hello(source: &mut LinkSource, keys: &mut Sealed) -> Result<Hello, LinkFault> {
    loop {
        if let Some(sealed) = source.inbox.frame(MAX_UNPROVEN)? {
            return match Payload::read(keys.opener.open(sealed)?)? {
                Payload::Control(Frame::Hello(theirs)) => Ok(theirs),
                _ => Err(LinkFault::Malformed("no HELLO".to_owned())),
            };
        }
        source.read().await?;
    }
}

async fn shake_hands(
    registry: &Registry,
    source: &mut LinkSource,
    role: Role,
) -> Result<Sealed, LinkFault> {
    let mut nonce = [0; NONCE];
    SystemRandom::new().fill(&mut nonce).map_err(|_| LinkFault::Random)?;
    let config = &registry.config;
    let mut handshake = Handshake::new(&config.secrets, &config.ring, role, nonce);
    let mut out = Vec::new();
    handshake.begin(&mut out);
    loop {
        send(&mut source.stream, std::mem::take(&mut out)).await?;
        source.read().await?;
        let result = handshake.advance(&mut source.inbox, &mut out);
        match result {
            Ok(None) => {}
            Ok(Some(keys)) => {
                send(&mut source.stream, out).await?;
                return Ok(keys);
            }
            Err(fault) => {
                // It says why there is no link; that matters more than whether it arrives.
                let _ = send(&mut source.stream, out).await;
                return Err(fault);
            }
        }
    }
}

async fn send(stream: &mut TcpStream, bytes: Vec<u8>) -> Result<(), LinkFault> {
    let (result, _) = write::write_all(stream, bytes, || ()).await;
    result.map_err(|error| LinkFault::Lost(error.to_string()))
}

/// Whether it is who it should be.
fn check(
    ours: &Hello,
    theirs: &Hello,
    wanted: Option<MemberId>,
    address: &str,
) -> Result<(), LinkFault> {
    if theirs.member == ours.member {
        return Err(match theirs.life == ours.life {
            true => LinkFault::Itself(address.to_owned()),
            false => LinkFault::Twin(theirs.member),
        });
    }
    match wanted {
        Some(wanted) if wanted != theirs.member => Err(LinkFault::Other(theirs.member, wanted)),
        _ => Ok(()),
    }
}

/// Closes a connection when it is dropped, whatever still holds its descriptor.
struct LinkHangup(TcpStream);

impl Drop for LinkHangup {
    fn drop(&mut self) {
        // Fails on a connection that is closed already, which is as good.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}
