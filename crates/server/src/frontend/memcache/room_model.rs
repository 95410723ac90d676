//! A model of connections that share a budget. They ask for room as [`connection`](super::connection)
//! and the tasks of their requests do. All that can happen next happens in a random order: a task
//! runs, a device reads, a client reads or sends. A seed gives the same run each time.
//!
//! 1. Some clients read and send whatever they should. Others stand still from some point on.
//! 2. After each step the sum of what is held is compared with the limit.
//! 3. Once nothing can happen, those are cut who stand still and hold what others wait for, as
//!    [`watch`](super::watch) does. If there are none, every other client must have its answers.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use bytes::Bytes;
use futures_util::future::{Either, select};

use super::answers::{Answers, Slot};
use super::budget::{BufferBudget, FREE};
use super::outgoing::Outgoing;
use crate::reactor::Wake;

/// Bytes of a part.
const PART: usize = 1 << 20;
/// A write of so many bytes is done though its client does not read.
const SOCKET: usize = 4096;
/// What one connection may take beyond the limit: two parts of a join, and answers that came first.
const MOST: usize = 3 * PART;
/// The longest request: what is more than all there is gets through alone.
const LONGEST: usize = 2 * PART;
const SEEDS: u64 = 1500;
/// More than any run takes.
const STEPS: usize = 100_000;

/// Says that a task is to run.
#[derive(Default)]
struct ToRun(AtomicBool);

impl std::task::Wake for ToRun {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    ready: Arc<ToRun>,
}

/// Something outside that a task waits for.
struct Happening {
    /// Whose client has to do it; `None`: a device.
    client: Option<Rc<ModelClient>>,
    /// A client that does not do it is cut if others wait for what it holds.
    is_watched: bool,
    done: Cell<bool>,
    wake: Wake,
}

impl Happening {
    fn can_happen(&self) -> bool {
        self.client.as_ref().is_none_or(|client| client.moves.get() > 0 || client.cut.get())
    }
}

struct ModelClient {
    /// How often it still reads or sends.
    moves: Cell<u32>,
    stops: bool,
    cut: Cell<bool>,
    over: Cell<bool>,
    answers: Weak<Answers>,
}

impl ModelClient {
    fn holds_what_is_short(&self) -> bool {
        self.answers.upgrade().is_some_and(|answers| answers.holds_what_is_short())
    }
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    /// A small value that is in memory.
    Small,
    /// One of so many bytes.
    Memory(usize),
    Flash(usize),
    /// One of so many parts, whose head is in memory or not, and whose first part may be bad.
    Parts {
        count: u32,
        on_flash: bool,
        bad: bool,
    },
    /// So many bytes to be joined with so many parts.
    Append {
        stores: usize,
        count: u32,
    },
    /// A request that is so long itself.
    Set(usize),
}

#[derive(Debug, Clone, Copy)]
struct ModelRequest {
    asked: Asked,
    /// It came with the request before it.
    came_along: bool,
}

struct World {
    random: Cell<u64>,
    budget: Rc<BufferBudget>,
    spawned: RefCell<Vec<Pin<Box<dyn Future<Output = ()>>>>>,
    events: RefCell<Vec<Rc<Happening>>>,
    value: Bytes,
}

impl World {
    fn below(&self, below: usize) -> usize {
        let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005);
        self.random.set(next.wrapping_add(1_442_695_040_888_963_407));
        (self.random.get() >> 33) as usize % below
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
    }

    async fn event(&self, client: Option<&Rc<ModelClient>>, is_watched: bool) {
        let (client, done, wake) = (client.cloned(), Cell::default(), Wake::default());
        let event = Rc::new(Happening { client, is_watched, done, wake });
        self.events.borrow_mut().push(event.clone());
        event.wake.until(|| event.done.get().then_some(())).await;
    }

    async fn device(&self) {
        self.event(None, false).await;
    }

    /// Something that can happen does.
    fn happens(&self, number: usize) {
        let mut events = self.events.borrow_mut();
        let mut possible = (0..events.len()).filter(|&n| events[n].can_happen());
        let place = possible.nth(number).expect("as many were counted");
        drop(possible);
        let event = events.swap_remove(place);
        drop(events);
        if let Some(client) = &event.client {
            client.moves.set(client.moves.get().saturating_sub(u32::from(client.stops)));
        }
        event.done.set(true);
        event.wake.wake();
    }

    fn request(&self) -> ModelRequest {
        let some = |least: usize, most: usize| least + self.below(most - least);
        let asked = match self.below(12) {
            0 => Asked::Small,
            1 | 2 => Asked::Memory(some(FREE / 2, PART)),
            3 => Asked::Flash(some(FREE / 2, PART)),
            4..=6 => Asked::Parts {
                count: some(1, 5) as u32,
                on_flash: self.below(2) == 0,
                bad: self.below(8) == 0,
            },
            7..=9 => Asked::Append { stores: some(1, 2 * FREE), count: some(1, 4) as u32 },
            10 => Asked::Set(some(FREE / 2, LONGEST)),
            // Room for it may turn out not to be needed.
            _ => Asked::Set(some(FREE, FREE + FREE / 8)),
        };
        ModelRequest { asked, came_along: self.below(3) > 0 }
    }
}

struct ModelConnection {
    world: Rc<World>,
    client: Rc<ModelClient>,
    answers: Rc<Answers>,
}

impl ModelConnection {
    async fn serve(self, requests: Vec<ModelRequest>) {
        // Whether it is cut or comes to its end.
        let _ = self.run(&requests).await;
        self.answers.close();
        self.client.over.set(true);
    }

    /// `None` once it is cut.
    async fn run(&self, requests: &[ModelRequest]) -> Option<()> {
        for request in requests {
            if !request.came_along {
                self.answers.set_input(0);
                self.read(false).await?;
            }
            if let Asked::Set(len) = request.asked {
                self.receive(len).await?;
            }
            while !self.turn(request.asked) {
                if self.send().await? == 0 {
                    self.answers.changed().await;
                    self.check()?;
                }
            }
        }
        loop {
            self.send().await?;
            if self.answers.is_complete() {
                return Some(());
            }
            self.answers.changed().await;
            self.check()?;
        }
    }

    fn check(&self) -> Option<()> {
        (!self.client.cut.get()).then_some(())
    }

    fn turn(&self, asked: Asked) -> bool {
        self.answers.begin_turn();
        let done = self.perform(asked);
        self.answers.end_turn();
        done
    }

    /// Has the client send something, and sends it what becomes known meanwhile.
    async fn read(&self, is_watched: bool) -> Option<()> {
        self.send().await?;
        let mut reading = pin!(self.world.event(Some(&self.client), is_watched));
        while !self.answers.is_complete() {
            match select(reading.as_mut(), pin!(self.answers.changed())).await {
                Either::Left(_) => return self.check(),
                Either::Right(_) => drop(self.send().await?),
            }
        }
        reading.await;
        self.check()
    }

    async fn receive(&self, len: usize) -> Option<()> {
        self.answers.set_input(len.min(FREE) - FREE / 8);
        self.read(false).await?;
        if len > FREE {
            while !self.answers.may_read(len - FREE) {
                if self.send().await? == 0 {
                    self.answers.changed().await;
                    self.check()?;
                }
            }
            self.answers.set_input(len - FREE / 8);
            self.read(true).await?;
        }
        Some(())
    }

    /// Sends whatever can be sent; how many bytes that was.
    async fn send(&self) -> Option<usize> {
        let (mut total, mut out) = (0, Outgoing::default());
        while self.answers.take(&mut out) {
            let held = out.held();
            if held > SOCKET {
                self.world.event(Some(&self.client), true).await;
            }
            self.check()?;
            self.answers.sent(held);
            (total, out) = (total + held, Outgoing::default());
        }
        assert!(!self.answers.is_broken() || self.client.cut.get(), "an answer is lost");
        Some(total)
    }

    fn perform(&self, asked: Asked) -> bool {
        let (answers, world) = (&self.answers, self.world.clone());
        if !answers.has_room(0) {
            return false;
        }
        let value = |len| world.value.slice(..len);
        match asked {
            Asked::Small | Asked::Set(_) => answers.push(|out| out.extend_from_slice(b"STORED")),
            Asked::Memory(len) => {
                if !answers.has_room(len) {
                    return false;
                }
                answers.push_sharing(|out| out.push_whole(&value(len)));
            }
            Asked::Flash(len) => {
                if !answers.has_room(len) {
                    return false;
                }
                let (slot, value) = (answers.reserve(b"f", false, len), value(len));
                self.world.spawn(async move {
                    world.device().await;
                    slot.answer_sharing(|out| out.push_whole(&value));
                });
            }
            Asked::Parts { count, on_flash, bad } => {
                let head = if on_flash { SOCKET } else { 0 };
                if !answers.has_room(head) {
                    return false;
                }
                let slot = answers.reserve(b"p", false, head);
                self.world.spawn(async move {
                    if on_flash {
                        world.device().await;
                    }
                    parts(&world, slot, count, bad).await;
                });
            }
            Asked::Append { stores, count } => {
                if !answers.has_room(stores) {
                    return false;
                }
                let slot = answers.reserve(b"a", true, stores);
                self.world.spawn(async move {
                    let Some(room) = slot.room_for_piece(2 * PART).await else { return };
                    for _ in 0..count {
                        world.device().await;
                    }
                    drop(room);
                    world.device().await;
                    slot.answer(|out| out.extend_from_slice(b"STORED"));
                });
            }
        }
        true
    }
}

/// Answers with a value in parts.
async fn parts(world: &World, slot: Slot, count: u32, bad: bool) {
    for _ in 0..count {
        let Some(room) = slot.room_for_piece(PART).await else { return };
        world.device().await;
        if bad {
            drop(room);
            break;
        }
        slot.piece(room, |out| out.push_whole(&world.value));
    }
    slot.answer(|out| out.extend_from_slice(b"END"));
}

/// Carries out what one seed says.
fn run(seed: u64) {
    let random = Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d);
    let (spawned, events) = (RefCell::default(), RefCell::default());
    let limit = (1 + seed as usize % 6) * PART;
    let budget = BufferBudget::new(limit, 4);
    let world = Rc::new(World {
        random,
        budget,
        spawned,
        events,
        value: Bytes::from_static(&[b'v'; PART]),
    });
    let mut clients = Vec::new();
    let still = world.below(3);
    for _ in 0..2 + world.below(12) {
        let answers = Answers::new(world.budget.share(), 0);
        let stops = world.below(4) < still;
        let moves = Cell::new(if stops { world.below(6) as u32 } else { u32::MAX });
        let (cut, over) = (Cell::default(), Cell::default());
        let client =
            Rc::new(ModelClient { moves, stops, cut, over, answers: Rc::downgrade(&answers) });
        let requests: Vec<_> = (0..1 + world.below(10)).map(|_| world.request()).collect();
        let connection = ModelConnection { world: world.clone(), client: client.clone(), answers };
        world.spawn(connection.serve(requests));
        clients.push(client);
    }
    let mut tasks: Vec<Task> = Vec::new();
    for step in 0.. {
        assert!(step < STEPS, "seed {seed}: it goes on and on");
        let new = world.spawned.take().into_iter();
        let is_new = || Arc::new(ToRun(AtomicBool::new(true)));
        tasks.extend(new.map(|future| Task { future, ready: is_new() }));
        let used = world.budget.used();
        assert!(
            used <= limit.max(LONGEST) + MOST,
            "seed {seed}: {used} bytes are held where {limit} may be"
        );
        let ready = |task: &Task| task.ready.0.load(Ordering::Relaxed);
        let run = tasks.iter().filter(|task| ready(task)).count();
        let possible = world.events.borrow().iter().filter(|event| event.can_happen()).count();
        if run + possible == 0 {
            if !end_of_all(seed, &world, &clients) {
                break;
            }
            continue;
        }
        let choice = world.below(run + possible);
        if choice >= run {
            world.happens(choice - run);
            continue;
        }
        let place = (0..tasks.len()).filter(|&n| ready(&tasks[n])).nth(choice).expect("counted");
        tasks[place].ready.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(tasks[place].ready.clone());
        if tasks[place].future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(tasks.swap_remove(place));
        }
    }
    assert_eq!((world.budget.used(), world.budget.is_short()), (0, false), "seed {seed}");
    assert!(tasks.is_empty(), "seed {seed}: a task does not end");
}

/// Nothing happens any more: whether somebody was cut, so that something can.
fn end_of_all(seed: u64, world: &World, clients: &[Rc<ModelClient>]) -> bool {
    let good = clients.iter().filter(|client| !client.stops);
    let waiting = good.filter(|client| !client.over.get()).count();
    let events = world.events.take();
    let still = events.iter().filter(|event| event.is_watched);
    let still = still.filter_map(|event| event.client.as_ref());
    let mut cut: Vec<_> = still.filter(|client| client.holds_what_is_short()).collect();
    assert!(waiting == 0 || !cut.is_empty(), "seed {seed}: {waiting} clients get no answer");
    if cut.is_empty() {
        cut.extend(clients.iter().filter(|client| !client.cut.get() && !client.over.get()));
    }
    for client in &cut {
        client.cut.set(true);
        if let Some(answers) = client.answers.upgrade() {
            answers.nudge();
        }
    }
    let is_cut = !cut.is_empty();
    world.events.replace(events);
    is_cut
}

#[test]
fn no_mix_of_clients_hangs_or_holds_more_than_there_is_room_for() {
    (0..SEEDS).for_each(run);
}
