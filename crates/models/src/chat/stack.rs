//! A stack for templates that come from anywhere.
//!
//! The template engine bounds how deep parentheses and blocks nest, but not how long a chain of operators or of `elif` is,
//! and each link costs stack when it is parsed, compiled and dropped. A thread with room for the longest chain that
//! [`super::MAX_TEMPLATE_BYTES`] allows makes it an ordinary template; values that a loop nests have the same room.
//!
//! Cost: starting a thread, which is little beside a rendering.

use std::io;
use std::thread;

/// Address space, of which a template in use touches a few pages. The shortest link is one byte, so there is room for 4 kB
/// per link; a build without optimization needs less than 1 kB.
const STACK_BYTES: usize = 1 << 29;

/// Runs `work` with the large stack.
pub(super) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
