//! Progress of long work, told to a callback; bars are the caller's business.

/// How far a piece of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// Hears about progress.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);
