//! What an extraction does beside its main work: digests of the source.
//!
//! They only overlap what would be done one after the other anyway; results do not depend on them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Progress;
use crate::digest::Reporter;
use crate::error::VindexError;
use crate::manifest::SourceFile;
use crate::source_digest::Undigested;

/// What the reporter is told.
const STAGE: &str = "digest of the source";

/// How often somebody who waits is told how far the digests are.
const PATIENCE: Duration = Duration::from_millis(20);

/// Digests of files, being computed.
pub(crate) struct Digests {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    total: u64,
    thread: Option<JoinHandle<Result<Vec<SourceFile>, VindexError>>>,
}

impl Digests {
    /// Begins to hash the files, in order.
    pub(crate) fn start(files: Vec<Undigested>) -> Self {
        let (done, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let total = files.iter().map(Undigested::n_bytes).sum();
        let (told, stopped) = (Arc::clone(&done), Arc::clone(&stop));
        let is_nothing = files.is_empty();
        let work = move || {
            let mut before = 0;
            let mut all = Vec::with_capacity(files.len());
            for file in &files {
                let mut call = |progress: Progress| {
                    told.store(progress.done, Ordering::Relaxed);
                    match stopped.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                };
                let mut reporter = Reporter { call: &mut call };
                let digest = file.digest(STAGE, before, total, &mut reporter)?;
                before += file.n_bytes();
                all.push(file.entry(digest));
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
    ) -> Result<Vec<SourceFile>, VindexError> {
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
