//! A server in memory: a front end without sockets and without flash.

use std::collections::HashMap;

// By this name it is found by the tests of this crate and by the fuzz targets, which take this file
// in as well.
use super::memcache::auth::Users;
use super::memcache::{
    Action, Change, Decoded, Decoder, Item, NewCas, Operation, Outcome, Parting, Reply, Request,
    bad_chunk, decide, expiry_of,
};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    value: Vec<u8>,
    item: Item<'static>,
    used: u64,
}

/// The server; one connection at a time.
pub struct Server {
    pub now: u64,
    pub decoder: Decoder,
    users: Option<Users>,
    objects: HashMap<Vec<u8>, Object>,
    cas: u64,
    flush: Option<u64>,
    input: Vec<u8>,
    receiving: Option<(Operation<'static>, Vec<u8>)>,
    pub closed: bool,
    /// The client has said its last: from then on it is told what happens.
    watching: bool,
}

pub const MAX_ITEM: usize = 1 << 20;

impl Server {
    pub fn new(users: Option<&str>) -> Self {
        Server {
            now: 1_800_000_000,
            decoder: Decoder::new(MAX_ITEM, users.is_some()),
            users: users.map(|text| Users::parse(text.as_bytes()).unwrap()),
            objects: HashMap::new(),
            cas: 0,
            flush: None,
            input: Vec::new(),
            receiving: None,
            closed: false,
            watching: false,
        }
    }

    /// The same, where values come in parts of two bytes that count more than 66 with their key.
    pub fn parting(users: Option<&str>) -> Self {
        let server = Server::new(users);
        let decoder = Decoder::new(MAX_ITEM, users.is_some());
        Server { decoder: decoder.parting(Parting { above: 66, part: 2 }), ..server }
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// What comes back for bytes that arrive together.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if self.watching {
            return out;
        }
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while !self.closed && !self.watching {
            match self.decoder.next(&input[at..]) {
                Decoded::More(least) => {
                    assert!(least > input.len() - at, "asked for what is there already");
                    break;
                }
                Decoded::Skip(len) => at += len,
                Decoded::Request(len, request) => {
                    at += len;
                    let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0, false));
                    self.request(request, &mut decoder, &mut out);
                    self.decoder = decoder;
                }
                Decoded::Begin(len, operation, value) => {
                    at += len;
                    self.receiving = Some((operation.into_owned(), Vec::with_capacity(value)));
                }
                Decoded::Part(part) => {
                    at += part.len();
                    self.receiving.as_mut().unwrap().1.extend_from_slice(part);
                }
                Decoded::End(len, whole) => {
                    at += len;
                    self.received(whole, &mut out);
                }
                Decoded::Close => self.closed = true,
            }
        }
        self.input = input[at..].to_vec();
        out
    }

    /// A value that came in parts is here.
    fn received(&mut self, whole: bool, out: &mut Vec<u8>) {
        let (mut operation, value) = self.receiving.take().unwrap();
        if !whole {
            return out.extend_from_slice(bad_chunk(&operation.reply).as_bytes());
        }
        let Action::Store(store) = &mut operation.action else { panic!("no store") };
        store.value = value.into();
        self.operation(&operation.key, &operation.action, &operation.reply, out);
    }

    fn request(&mut self, request: Request<'_>, decoder: &mut Decoder, out: &mut Vec<u8>) {
        if self.flush.is_some_and(|flush| flush <= self.now) {
            self.objects.clear();
            self.flush = None;
        }
        match request {
            Request::Retrieve { keys, get, reply } => {
                for key in keys.iter() {
                    self.operation(key, &Action::Get(get), &reply, out);
                }
                out.extend_from_slice(Reply::END);
            }
            Request::Operation(Operation { key, action, reply }) => {
                self.operation(&key, &action, &reply, out);
            }
            Request::TooLarge { key, remove, reply, .. } => {
                if remove {
                    self.objects.remove(&*key);
                }
                reply.outcome(&key, &Outcome::TooLarge, None, self.now, out);
            }
            Request::Answer { bytes, close } => {
                out.extend_from_slice(&bytes);
                self.closed = close;
            }
            Request::Stats { argument: b"", reply } => {
                reply.stat(("curr_items", &self.objects.len().to_string()), out);
                reply.stats_end(out);
            }
            Request::Stats { reply, .. } => reply.no_such_stats(out),
            Request::Flush { delay, reply } => {
                match delay {
                    None => return reply.bad_expiry(out),
                    Some(..=0) => self.objects.clear(),
                    Some(delay) => self.flush = Some(expiry_of(delay, self.now).into()),
                }
                reply.done(out);
            }
            Request::MemoryLimit { quiet, .. } | Request::Verbosity { quiet, .. } => {
                out.extend_from_slice(if quiet { b"" } else { b"OK\r\n" });
            }
            Request::Version(reply) => reply.version("1.6.18", out),
            Request::Authenticate { user, password, reply } => {
                let accepted = self.users.as_ref().is_some_and(|users| users.knows(user, password));
                if accepted {
                    decoder.set_authenticated();
                }
                reply.authenticated(accepted, out);
            }
            Request::Watch(_) => {
                out.extend_from_slice(b"OK\r\n");
                self.watching = true;
            }
            Request::Dump(dump) => {
                let mut objects: Vec<_> = self.objects.iter().filter(|_| dump.is_named).collect();
                objects.sort_by_key(|(key, _)| *key);
                for (key, Object { value, item, used }) in objects {
                    let idle = (self.now - used) as u32;
                    dump.line(key, &Item { value, idle, ..*item }, self.now, out);
                }
                out.extend_from_slice(dump.end());
            }
            Request::RefreshCertificates => out.extend_from_slice(b"Error TLS not enabled\r\n"),
        }
    }

    fn operation(&mut self, key: &[u8], action: &Action<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let now = self.now;
        self.objects
            .retain(|_, object| object.item.expiry == 0 || u64::from(object.item.expiry) > now);
        let old = self.objects.get(key).cloned();
        let item = old.as_ref().map(|object| Item {
            value: &object.value,
            idle: (now - object.used) as u32,
            ..object.item
        });
        let decision = decide(action, item, now);
        let mut outcome = decision.outcome;
        match decision.change {
            Change::None => {}
            Change::Remove => drop(self.objects.remove(key)),
            Change::Put(new) => {
                let mut value = Vec::new();
                new.value.write(&mut value);
                assert_eq!(value.len(), new.value.len());
                let cas = match new.cas {
                    NewCas::Fresh => {
                        self.cas += 1;
                        self.cas
                    }
                    NewCas::Is(cas) => cas,
                };
                outcome.set_cas(cas);
                let item = Item {
                    value: &[],
                    in_parts: None,
                    flags: new.flags,
                    cas,
                    expiry: new.expiry,
                    stale: new.stale,
                    token_sent: new.token_sent,
                    binary_key: new.binary_key,
                    fetched: false,
                    idle: 0,
                };
                self.objects.insert(key.to_vec(), Object { value, item, used: now });
            }
        }
        if let Action::Get(get) = action
            && !get.silent
            && let Some(object) = self.objects.get_mut(key)
        {
            (object.item.fetched, object.used) = (true, now);
        }
        let mode = match action {
            Action::Store(store) => Some(store.mode),
            _ => None,
        };
        reply.outcome(key, &outcome, mode, now, out);
    }
}
