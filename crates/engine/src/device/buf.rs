//! Aligned buffers that the kernel can read into and write from directly.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::long_bufs::{self, LongBufs};

/// Alignment of every [`AlignedBuf`] in memory, enough for `O_DIRECT` on every device the engine
/// opens.
pub const BUF_ALIGN: usize = 4096;

/// Sizes of buffers kept for the next read, in steps of [`BUF_ALIGN`]: up to 16 KiB.
const KEPT_SIZES: usize = 4;
/// Buffers of each size that a thread keeps at least, where it has dropped so many: as many as a
/// queue has reads in flight.
const KEPT_COUNT: usize = 64;
/// Bytes of all of them, which nothing goes beyond. While sizes have fewer, others have more. 512
/// of 4 KiB are what the reads of 32 connections take that have 16 requests outstanding each.
const KEPT_BYTES: usize = KEPT_COUNT * BUF_ALIGN * (KEPT_SIZES * (KEPT_SIZES + 1) / 2);
const _: () = assert!(KEPT_BYTES == 5 << 19, "the guide says 2.5 MiB");

/// What a thread keeps, by size. Freed with the thread.
#[derive(Default)]
struct BufferPool {
    /// Whether the thread has ever read. If not, it keeps no short buffers.
    reads: bool,
    /// At each place those of one capacity, by [`BufferPool::place`].
    short: [Vec<AlignedBuf>; KEPT_SIZES],
    /// Bytes of all of them: at most [`KEPT_BYTES`].
    short_bytes: usize,
    long: LongBufs<AlignedBuf>,
}

impl BufferPool {
    /// Where short buffers of this capacity are kept; `None` of a long one.
    fn place(capacity: usize) -> Option<usize> {
        let at = capacity / BUF_ALIGN - 1;
        (at < KEPT_SIZES).then_some(at)
    }

    /// The capacity of the buffers that are kept at this place.
    fn capacity_at(at: usize) -> usize {
        (at + 1) * BUF_ALIGN
    }

    /// A buffer from this place.
    fn take_short(&mut self, at: usize) -> Option<AlignedBuf> {
        // Not where one is kept: that is a drop, of which many may follow.
        debug_assert!(self.short_bytes <= KEPT_BYTES);
        debug_assert_eq!(self.short_bytes, self.sum_of_short());
        let buf = self.short[at].pop()?;
        self.short_bytes -= buf.capacity;
        Some(buf)
    }

    /// Whether one more of this place may be kept.
    fn may_keep_short(&self, at: usize) -> bool {
        let fits = self.short_bytes + Self::capacity_at(at) <= KEPT_BYTES;
        self.reads && (fits || self.short[at].len() < KEPT_COUNT)
    }

    /// Keeps a buffer at this place, which may be kept. Where others have its room, as many of them
    /// go as it takes, of those that have the most bytes beyond [`KEPT_COUNT`] buffers. There is
    /// always one: so many of each size fit.
    fn keep_short(&mut self, at: usize, buf: AlignedBuf) {
        debug_assert!(self.may_keep_short(at) && buf.capacity == Self::capacity_at(at));
        while self.short_bytes + buf.capacity > KEPT_BYTES {
            let beyond = |at: &usize| self.short[*at].len().saturating_sub(KEPT_COUNT) * (*at + 1);
            let most = (0..KEPT_SIZES).max_by_key(beyond).expect("there are sizes");
            debug_assert!(self.short[most].len() > KEPT_COUNT);
            let Some(other) = self.take_short(most) else { break };
            other.free();
        }
        self.short_bytes += buf.capacity;
        self.short[at].push(buf);
    }

    /// What `short_bytes` counts.
    fn sum_of_short(&self) -> usize {
        self.short.iter().enumerate().map(|(at, kept)| kept.len() * Self::capacity_at(at)).sum()
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        self.short.iter_mut().flat_map(std::mem::take).for_each(AlignedBuf::free);
        self.long.shrink(0, AlignedBuf::free);
    }
}

/// From this length on each buffer is a mapping of its own. Chunks are made by one thread and
/// dropped by another. In the heap that leaves holes, which the memory budget does not see. (Miri
/// knows no mappings.)
const MAPPED_FROM: usize = if cfg!(miri) { usize::MAX } else { 128 << 10 };

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BUF_ALIGN).expect("buffer length overflows")
}

/// Zeroed memory; `capacity` is a multiple of [`BUF_ALIGN`], not zero.
fn allocate(capacity: usize) -> NonNull<u8> {
    if capacity >= MAPPED_FROM {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that
        // exists.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), capacity, access, flags) };
        return mapped
            .ok()
            .and_then(|p| NonNull::new(p.cast()))
            .unwrap_or_else(|| handle_alloc_error(layout(capacity)));
    }
    // SAFETY: the layout's size is not zero.
    let raw = unsafe { alloc_zeroed(layout(capacity)) };
    NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout(capacity)))
}

/// Gives back what [`allocate`] gave.
///
/// # Safety
/// `ptr` came from `allocate(capacity)` and is not used any more.
unsafe fn free(ptr: NonNull<u8>, capacity: usize) {
    if capacity >= MAPPED_FROM {
        // SAFETY: it is a whole mapping of this length, by the caller's word.
        let unmapped = unsafe { munmap(ptr.as_ptr().cast(), capacity) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        return;
    }
    // SAFETY: allocated with this layout, by the caller's word.
    unsafe { dealloc(ptr.as_ptr(), layout(capacity)) }
}

thread_local! {
    static KEPT: RefCell<BufferPool> = RefCell::default();
}

/// A heap buffer aligned to [`BUF_ALIGN`], its capacity a multiple of it.
///
/// Turns into [`Bytes`] without copying, so that a value can be served out of the buffer its flash
/// page was read into.
pub struct AlignedBuf {
    /// Owned allocation of `capacity` initialised bytes.
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its allocation and hands out access by the usual borrowing rules only.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives shared reads only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// When `len` is beyond what an allocation can have.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let capacity =
            len.max(1).checked_next_multiple_of(BUF_ALIGN).expect("buffer length overflows");
        Self { ptr: allocate(capacity), len, capacity }
    }

    /// A buffer of `len` bytes for a read to fill. They are initialised but arbitrary. Short
    /// buffers that this thread has dropped come back as they were, and long ones where it [keeps
    /// them](Self::keep_long). Allocating and clearing them costs a good part of the engine's share
    /// of a read.
    ///
    /// # Panics
    /// As [`AlignedBuf::zeroed`].
    #[must_use]
    pub fn for_read(len: usize) -> Self {
        let capacity = Self::read_capacity(len);
        let again = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            kept.reads = true;
            match BufferPool::place(capacity) {
                Some(at) => kept.take_short(at),
                None => {
                    let again = kept.long.take(capacity);
                    // What may be kept may be less by now: this buffer is in use.
                    kept.long.shrink(usize::MAX, Self::free);
                    again
                }
            }
        });
        let mut buf = again.ok().flatten().unwrap_or_else(|| Self::zeroed(capacity));
        buf.len = len;
        buf
    }

    /// Capacity of the buffer that a read of `len` bytes gets.
    #[must_use]
    pub fn read_capacity(len: usize) -> usize {
        long_bufs::capacity_of(len, BUF_ALIGN)
    }

    /// Lets this thread keep up to `most` bytes of long buffers (over 16 KiB) that it drops, for
    /// its next reads. At first it keeps none. What it keeps beyond a lower limit goes at its next
    /// read of that kind, or with [`AlignedBuf::give_back_long`].
    pub fn keep_long(most: usize) {
        // Not while the thread ends.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().long.set_most(most));
    }

    /// Frees what this thread keeps of long buffers beyond what it may keep.
    pub fn give_back_long() {
        let _ = KEPT.try_with(|kept| kept.borrow_mut().long.shrink(usize::MAX, Self::free));
    }

    /// Frees as many bytes of long buffers as this thread has not used since the last call. To be
    /// called now and then by who lets it keep them.
    pub fn give_back_unused_long() {
        let _ = KEPT.try_with(|kept| kept.borrow_mut().long.shrink_unused(Self::free));
    }

    /// Bytes of long buffers that this thread keeps.
    #[must_use]
    pub fn kept_long() -> usize {
        KEPT.try_with(|kept| kept.borrow().long.bytes()).unwrap_or(0)
    }

    /// Frees a buffer for good.
    fn free(self) {
        let buf = std::mem::ManuallyDrop::new(self);
        // SAFETY: as in `Drop`, which is not run: it would keep the buffer again.
        unsafe { free(buf.ptr, buf.capacity) }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Bytes it can hold, a multiple of [`BUF_ALIGN`].
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length within the capacity. What lies between the old and a larger length is
    /// zero or what was there before, never uninitialised.
    ///
    /// # Panics
    /// When `len` is beyond the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} beyond the capacity {}", self.capacity);
        self.len = len;
    }

    /// Start of the buffer, for requests to the kernel. Unlike a pointer taken from a slice it is
    /// valid for the whole life of the buffer, also after the buffer has been moved.
    pub(crate) fn as_raw(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // Not while the thread ends.
        let _ = KEPT.try_with(|kept| {
            let Ok(mut kept) = kept.try_borrow_mut() else { return };
            let kept = &mut *kept;
            let short = BufferPool::place(self.capacity);
            if short.is_some_and(|at| !kept.may_keep_short(at)) {
                return;
            }
            let (len, capacity) = (self.len, std::mem::take(&mut self.capacity));
            let moved = Self { ptr: self.ptr, len, capacity };
            match short {
                Some(at) => kept.keep_short(at, moved),
                None => kept.long.keep(capacity, moved, Self::free),
            }
        });
        if self.capacity == 0 {
            // Another value owns the memory now.
            return;
        }
        // SAFETY: `ptr` was allocated in `zeroed` with exactly this capacity and is freed once.
        unsafe { free(self.ptr, self.capacity) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes from `ptr` are allocated, initialised and owned by
        // `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish()
    }
}

impl From<AlignedBuf> for Bytes {
    fn from(buf: AlignedBuf) -> Self {
        Bytes::from_owner(buf)
    }
}

/// Bytes on their way to a device: a range of a shared, from now on unchanging buffer.
#[derive(Debug, Clone)]
pub struct WriteBuf {
    chunk: Arc<AlignedBuf>,
    start: usize,
    end: usize,
}

impl WriteBuf {
    /// The bytes `range` of `chunk`. Its start must be a multiple of the device's alignment,
    /// because the kernel wants the address aligned as well.
    ///
    /// # Panics
    /// When `range` is not within the chunk.
    #[must_use]
    pub fn slice(chunk: Arc<AlignedBuf>, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= chunk.len(),
            "{range:?} outside a chunk of {}",
            chunk.len()
        );
        Self { chunk, start: range.start, end: range.end }
    }

    /// Start of the bytes, valid as long as this value or a clone of it lives.
    pub(crate) fn as_raw(&self) -> *const u8 {
        self.chunk.as_raw().wrapping_add(self.start)
    }
}

impl Deref for WriteBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }
}

impl From<AlignedBuf> for WriteBuf {
    fn from(buf: AlignedBuf) -> Self {
        Arc::new(buf).into()
    }
}

impl From<Arc<AlignedBuf>> for WriteBuf {
    fn from(chunk: Arc<AlignedBuf>) -> Self {
        let end = chunk.len();
        Self { chunk, start: 0, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_bounded() {
        for len in [0, 1, 512, 4096, 4097, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.capacity() % BUF_ALIGN, 0);
            assert!(buf.capacity() >= len);
            assert!(buf.iter().all(|&b| b == 0));
            buf.fill(7);
            assert!(buf.iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn a_buffer_for_reads_comes_back_whole_whatever_its_last_length_was() {
        for len in [1, 512, 4096, 5000, 16 << 10, 17 << 10] {
            let mut buf = AlignedBuf::for_read(len);
            buf.fill(7);
            buf.set_len(1);
            let (at, capacity) = (buf.as_ptr(), buf.capacity());
            drop(buf);
            let again = AlignedBuf::for_read(len);
            assert_eq!((again.len(), again.capacity()), (len, capacity));
            assert!(again.as_ptr() == at || len > 16 << 10, "{len}");
            assert!(AlignedBuf::zeroed(len).iter().all(|&b| b == 0));
        }
    }

    /// Has so many buffers at a time, all of this length.
    fn use_some(count: usize, len: usize) {
        let many: Vec<_> = (0..count).map(|_| AlignedBuf::for_read(len)).collect();
        drop(many);
    }

    /// How many short buffers of each size this thread keeps.
    fn kept() -> [usize; KEPT_SIZES] {
        KEPT.with_borrow(|kept| {
            assert_eq!(kept.short_bytes, kept.sum_of_short());
            assert!(kept.short_bytes <= 5 << 19, "the guide says 2.5 MiB");
            kept.short.each_ref().map(Vec::len)
        })
    }

    #[test]
    fn a_thread_keeps_so_many_short_buffers_of_each_size_and_more_where_others_leave_room() {
        const MOST: usize = KEPT_BYTES / BUF_ALIGN;
        // A thread of its own, which has not read before.
        std::thread::spawn(|| {
            use_some(MOST - 7, 4096);
            assert_eq!(kept(), [MOST - 7, 0, 0, 0]);
            use_some(MOST, 4096);
            assert_eq!(kept(), [MOST, 0, 0, 0]);
            use_some(2 * MOST, 4096);
            assert_eq!(kept(), [MOST, 0, 0, 0], "its own when all were out");
            use_some(2 * KEPT_COUNT, 16 << 10);
            assert_eq!(kept(), [MOST - 4 * KEPT_COUNT, 0, 0, KEPT_COUNT], "each size has some");
            let out: Vec<_> = (0..MOST).map(|_| AlignedBuf::for_read(4096)).collect();
            use_some(2 * KEPT_COUNT, 16 << 10);
            assert_eq!(kept(), [0, 0, 0, 2 * KEPT_COUNT], "and more where others leave room");
            drop(out);
            assert_eq!(kept(), [2 * KEPT_COUNT, 0, 0, 2 * KEPT_COUNT]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn whatever_the_order_a_thread_keeps_no_more_bytes_and_64_of_each_size_fit() {
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [4, 1, 2, 3], [2, 4, 1, 3]] {
            std::thread::spawn(move || {
                for size in order {
                    use_some(1000, size * 4096);
                    assert!(kept()[size - 1] >= 64, "{order:?}: {size} of {:?}", kept());
                }
                assert_eq!(kept(), [64; KEPT_SIZES], "{order:?}");
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_thread_that_reads_nothing_keeps_nothing() {
        std::thread::spawn(|| {
            drop([AlignedBuf::zeroed(4096), AlignedBuf::copy_of(&[1; 5000])]);
            assert_eq!(kept(), [0; KEPT_SIZES]);
            drop(AlignedBuf::for_read(4096));
            drop(AlignedBuf::zeroed(5000));
            assert_eq!(kept(), [1, 1, 0, 0]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn long_buffers_come_back_where_a_thread_keeps_them() {
        std::thread::spawn(|| {
            let len = (1 << 20) + 5000;
            drop(AlignedBuf::for_read(len));
            assert_eq!(AlignedBuf::kept_long(), 0, "at first none is kept");
            AlignedBuf::keep_long(4 << 20);
            let two = [(); 2].map(|()| AlignedBuf::for_read(len));
            let places = [two[0].as_ptr(), two[1].as_ptr()];
            drop(two);
            assert_eq!(AlignedBuf::kept_long(), 2 * AlignedBuf::read_capacity(len));
            let again = AlignedBuf::for_read(len - 4096);
            assert_eq!(again.len(), len - 4096);
            assert!(places.contains(&again.as_ptr()), "of the same class");
            AlignedBuf::keep_long(1 << 20);
            drop(AlignedBuf::for_read(17 << 10));
            assert_eq!(AlignedBuf::kept_long(), 20 << 10, "a lower limit holds at the next read");
            drop(again);
            assert_eq!(AlignedBuf::kept_long(), 20 << 10, "longer than what may be kept");
            AlignedBuf::keep_long(0);
            AlignedBuf::give_back_long();
            assert_eq!(AlignedBuf::kept_long(), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn long_buffers_that_nobody_reads_into_are_given_back() {
        std::thread::spawn(|| {
            AlignedBuf::keep_long(4 << 20);
            drop(AlignedBuf::for_read(1 << 20));
            AlignedBuf::give_back_unused_long();
            assert_eq!(AlignedBuf::kept_long(), 1 << 20, "used since the last call");
            AlignedBuf::give_back_unused_long();
            assert_eq!(AlignedBuf::kept_long(), 0);
            drop(AlignedBuf::for_read(1 << 20));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn bytes_of_a_buffer_share_its_memory() {
        let buf = AlignedBuf::copy_of(b"hello world");
        let at = buf.as_ptr();
        let bytes = Bytes::from(buf);
        let tail = bytes.slice(6..);
        drop(bytes);
        assert_eq!(&tail[..], b"world");
        assert_eq!(tail.as_ptr(), at.wrapping_add(6));
    }

    #[test]
    fn a_shrunk_buffer_grows_back_to_what_it_held() {
        let mut buf = AlignedBuf::copy_of(&[9; 100]);
        buf.set_len(10);
        assert_eq!(buf.len(), 10);
        buf.set_len(4096);
        assert!(buf[..100].iter().all(|&b| b == 9) && buf[100..].iter().all(|&b| b == 0));
    }

    #[test]
    #[should_panic(expected = "beyond the capacity")]
    fn a_length_beyond_the_capacity_is_refused() {
        AlignedBuf::zeroed(1).set_len(BUF_ALIGN + 1);
    }

    #[test]
    fn a_write_buf_shows_its_range() {
        let chunk = Arc::new(AlignedBuf::copy_of(&[[1u8; 512], [2u8; 512]].concat()));
        let second = WriteBuf::slice(chunk.clone(), 512..1024);
        assert!(second.iter().all(|&b| b == 2));
        assert_eq!(second.as_raw(), second.as_ptr());
        assert_eq!(WriteBuf::from(chunk).len(), 1024);
    }
}
