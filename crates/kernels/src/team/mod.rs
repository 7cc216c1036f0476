//! The thread team: a caller and `n - 1` workers that run one closure at a time.
//!
//! Decoding a token makes hundreds of dispatches of tens of microseconds, so a dispatch is one atomic operation per
//! worker and, mostly, no wait: the caller offers the closure to every worker under a new generation, runs its own share,
//! takes back what nobody has started and runs that too, and then waits for the shares that are being run ([`protocol`]).
//! A worker that has lost its core to another program therefore delays the caller by the piece it has in hand at most.
//!
//! A worker that has nothing to do spins briefly (only when the machine has a core for it), then yields, then parks, so an
//! idle team costs nothing.  The caller spins, then yields; it never parks ([`wait`]).  A dispatch takes `&mut Team`, so a
//! dispatch inside a dispatch does not compile.
//!
//! This is not a scheduler: work is rows, every thread has a contiguous share of them, and a thread that has finished its
//! own takes pieces from the ends of the others' ([`split`]).  Who computes a row changes nothing about its bits.

#![expect(
    unsafe_code,
    reason = "a closure of the caller's lifetime runs on threads that outlive it, and disjoint parts of one slice are written by several threads"
)]

mod chunks;
mod crew;
#[cfg(all(loom, test))]
mod models;
mod protocol;
mod rows;
mod split;
mod sync;
mod wait;

pub(crate) use rows::TileWriter;
pub(crate) use split::share;

pub use chunks::Team;
pub use rows::RowOrder;
