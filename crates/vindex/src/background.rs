//! What an extraction does beside its main work: digests of the source, and writing back what is written.
//!
//! Both only overlap what would be done one after the other anyway; results do not depend on them.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Progress;
use crate::digest::{Hashed, Reporter, hash_file};
use crate::error::VindexError;

/// What the reporter is told.
const STAGE: &str = "digest of the source";

/// How often somebody who waits is told how far the digests are.
const PATIENCE: Duration = Duration::from_millis(20);

/// Bytes that may wait in memory before they are sent to the disk.
const FLUSH_BYTES: u64 = 64 << 20;

/// Digests of files, being computed.
pub(crate) struct Digests {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    total: u64,
    thread: Option<JoinHandle<Result<Vec<Hashed>, VindexError>>>,
}

impl Digests {
    /// Begins to read the files, in order.
    pub(crate) fn start(paths: Vec<PathBuf>) -> Self {
        let (done, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let total = paths
            .iter()
            .filter_map(|path| path.metadata().ok())
            .map(|stat| stat.len())
            .sum();
        let (told, stopped) = (Arc::clone(&done), Arc::clone(&stop));
        let is_nothing = paths.is_empty();
        let work = move || {
            let mut before = 0;
            let mut all = Vec::with_capacity(paths.len());
            for path in &paths {
                let mut call = |progress: Progress| {
                    told.store(before + progress.done, Ordering::Relaxed);
                    match stopped.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                };
                let hashed = hash_file(path, STAGE, &mut Reporter { call: &mut call })?;
                before += hashed.size;
                all.push(hashed);
            }
            Ok(all)
        };
        Self {
            done,
            stop,
            total,
            thread: (!is_nothing).then(|| thread::spawn(work)),
        }
    }

    /// Waits for the digests, in the order of the files.
    pub(crate) fn finish(
        mut self,
        reporter: &mut Reporter<'_>,
    ) -> Result<Vec<Hashed>, VindexError> {
        let Some(thread) = self.thread.take() else {
            return Ok(Vec::new());
        };
        while !thread.is_finished() {
            let told = reporter.tell(STAGE, self.done.load(Ordering::Relaxed), self.total);
            if let Err(error) = told {
                self.stop.store(true, Ordering::Relaxed);
                // It ends at its next piece, with the error that is returned here anyway.
                let _ = thread.join();
                return Err(error);
            }
            thread::sleep(PATIENCE);
        }
        let all = match thread.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        reporter.tell(STAGE, self.total, self.total)?;
        Ok(all)
    }
}

impl Drop for Digests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Nobody wants the digests any more.
            let _ = thread.join();
        }
    }
}

/// Sends what is written to the disk while more is written, so that the last flush has little to wait for.
pub(crate) struct WriteBack {
    wrote: u64,
    sender: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBack {
    /// Follows a file; without a second handle to it, nothing is done ahead.
    pub(crate) fn of(file: &File) -> Self {
        let Ok(file) = file.try_clone() else {
            return Self {
                wrote: 0,
                sender: None,
                thread: None,
            };
        };
        let (sender, receiver) = sync_channel(1);
        let thread = thread::spawn(move || {
            while receiver.recv().is_ok() {
                // A failure shows again in the last flush, which is not ignored.
                let _ = file.sync_data();
            }
        });
        Self {
            wrote: 0,
            sender: Some(sender),
            thread: Some(thread),
        }
    }

    /// Tells how much more has been written.
    pub(crate) fn wrote(&mut self, n: u64) {
        self.wrote += n;
        if self.wrote >= FLUSH_BYTES {
            self.wrote = 0;
            if let Some(sender) = &self.sender {
                // One that waits will take this along.
                let _ = sender.try_send(());
            }
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It only flushes.
            let _ = thread.join();
        }
    }
}
