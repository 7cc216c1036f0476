//! Which thread computes which chunks of a slice.
//!
//! Every thread has a contiguous share, divided into a few pieces.  It takes them from the front; a thread whose share is
//! done takes pieces from the back of another's.  So memory is read in order as long as all threads keep up, and one that
//! does not (its core is slower, or another program has it) is relieved.

use std::marker::PhantomData;
use std::ops::Range;

use super::sync::atomic::{AtomicU64, Ordering};

/// The part of `0..n` that falls to `worker` of `n_threads`.
pub(crate) fn share(n: usize, worker: usize, n_threads: usize) -> Range<usize> {
    let at = |i: usize| n / n_threads * i + (n % n_threads) * i / n_threads;
    at(worker)..at(worker + 1)
}

/// The pieces of a share that nobody has taken: `front` in the low half, `back` in the high half.  In cache lines of its
/// own, as its owner uses it all the time and others rarely.
#[derive(Debug)]
#[repr(align(128))]
struct Left(AtomicU64);

/// Who has taken which pieces of `n_chunks` chunks.
#[derive(Debug)]
pub(super) struct Claims(Box<[Left]>);

/// A division of chunks over threads: one contiguous share each, of at most `pieces_max` pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Division {
    pub(super) n_chunks: usize,
    pub(super) n_threads: usize,
    pub(super) pieces_max: u32,
}

impl Division {
    fn share(self, thread: usize) -> Range<usize> {
        share(self.n_chunks, thread, self.n_threads)
    }

    fn n_pieces(self, share: &Range<usize>) -> u32 {
        u32::try_from(share.len()).map_or(self.pieces_max, |len| len.min(self.pieces_max))
    }
}

impl Claims {
    /// For divisions over at most `n_threads` threads.
    pub(super) fn new(n_threads: usize) -> Self {
        Self((0..n_threads).map(|_| Left(AtomicU64::new(0))).collect())
    }

    /// Makes all pieces of `division` free.
    pub(super) fn divide(&mut self, division: Division) -> &Self {
        for (thread, left) in self.0[..division.n_threads].iter().enumerate() {
            let n_pieces = division.n_pieces(&division.share(thread));
            // The offer of the dispatch releases this to the workers.
            left.0.store(u64::from(n_pieces) << 32, Ordering::Relaxed);
        }
        self
    }

    /// Calls `f` with runs of chunks until none is left: those of `thread` in order, then others'.  All threads together
    /// get every chunk once.
    pub(super) fn drain(&self, division: Division, thread: usize, mut f: impl FnMut(Range<usize>)) {
        for owner in (thread..division.n_threads).chain(0..thread) {
            let chunks = division.share(owner);
            let n_pieces = division.n_pieces(&chunks);
            let end = if owner == thread {
                End::Front
            } else {
                End::Back
            };
            while let Some(piece) = self.0[owner].take(end) {
                let within = share(chunks.len(), piece as usize, n_pieces as usize);
                f(chunks.start + within.start..chunks.start + within.end);
            }
        }
    }
}

/// Where a piece is taken from.
#[derive(Debug, Clone, Copy)]
enum End {
    Front,
    Back,
}

impl Left {
    /// Takes a piece that nobody has.
    fn take(&self, end: End) -> Option<u32> {
        // Relaxed: the word decides who has which piece; what the piece is about is handed over with the dispatch.
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (front, back) = (word as u32, (word >> 32) as u32);
            if front >= back {
                return None;
            }
            let (piece, rest) = match end {
                End::Front => (front, word + 1),
                End::Back => (back - 1, word - (1 << 32)),
            };
            match self
                .0
                .compare_exchange_weak(word, rest, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(piece),
                Err(now) => word = now,
            }
        }
    }
}

/// A slice whose disjoint parts go to different threads.
pub(super) struct Parts<'a, T> {
    base: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a part is handed to one thread only (the contract of `part`), which amounts to sending it.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self {
            base: data.as_mut_ptr(),
            len: data.len(),
            data: PhantomData,
        }
    }

    /// The elements of `range`, cut at the end of the slice.
    ///
    /// # Safety
    ///
    /// No two calls may be given overlapping ranges.
    #[expect(clippy::mut_from_ref, reason = "the parts are disjoint by contract")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        // SAFETY: `start <= end <= len` of the borrowed slice, and nobody else has this range.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), end - start) }
    }
}
