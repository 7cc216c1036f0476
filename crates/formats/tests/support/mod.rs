//! Bytes of valid and hostile files, built by hand and not by the writers under test.
#![allow(dead_code, reason = "every test binary uses another part")]
#![allow(
    unreachable_pub,
    reason = "shared by test binaries, not part of the API"
)]

pub mod gguf;
pub mod safetensors;

use std::error::Error;
use std::time::{Duration, Instant};

/// A file and what opening it must say; `None` for a valid one. The path in messages is `x`.
pub struct Case {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub message: Option<&'static str>,
}

pub fn valid(name: &'static str, bytes: Vec<u8>) -> Case {
    Case {
        name,
        bytes,
        message: None,
    }
}

pub fn hostile(name: &'static str, bytes: Vec<u8>, message: &'static str) -> Case {
    Case {
        name,
        bytes,
        message: Some(message),
    }
}

/// Opening a small file must never take longer, in a debug build on a busy machine.
pub const OPEN_TIME_MAX: Duration = Duration::from_millis(100);

/// The result of `open`, and the fastest of up to three tries: a slow machine is not a slow parser.
pub fn timed<T>(name: &str, open: impl Fn() -> T) -> T {
    for _ in 0..2 {
        let start = Instant::now();
        let result = open();
        if start.elapsed() < OPEN_TIME_MAX {
            return result;
        }
    }
    let start = Instant::now();
    let result = open();
    let elapsed = start.elapsed();
    assert!(elapsed < OPEN_TIME_MAX, "{name} took {elapsed:?}");
    result
}

/// An error with its causes, as the command line prints them.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Runs the cases through `open`; all failures are listed together.
pub fn check_all<T>(cases: Vec<Case>, open: impl Fn(&[u8]) -> Result<T, larql_formats::Error>) {
    let mut failures = Vec::new();
    for case in cases {
        let found = timed(case.name, || open(&case.bytes).map(drop));
        let found = found.err().map(|e| chain(&e));
        let expected = case.message.map(|m| format!("x: {m}"));
        if found != expected {
            failures.push(format!(
                "{}:\n  expected {expected:?}\n  found    {found:?}",
                case.name
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
