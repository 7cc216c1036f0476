//! The primitives under the team: those of the standard library, or loom's when its models are run.
//!
//! Loom runs a test once for every order in which its threads may meet, so only the models use it.

#[cfg(not(all(loom, test)))]
pub(super) use std::{
    sync::{Arc, Mutex, atomic},
    thread,
};

#[cfg(all(loom, test))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex, atomic},
    thread,
};

/// `std::cell::UnsafeCell` with the access functions of loom's, which see a race.
#[cfg(not(all(loom, test)))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
