//! What a run works with besides the model: threads, kernels, arithmetic, scratch memory.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larql_kernels::{Activations, Arithmetic, Kernels, LinearJob, Team, linear};

use crate::attention::Group;
use crate::error::EngineError;
use crate::forward::{BatchRoom, LogitRows};
use crate::ledger::{Charge, Ledger, OperatorClass};
use crate::model::Matrix;
use crate::pass::Room;

/// Logits that are kept for their memory: those of the pass under way, of the last one, and of one besides, as two models
/// take turns in speculation.
const LOGITS_KEPT: usize = 3;
/// Longest logits that are kept so: 16 MB.
const LOGIT_VALUES_KEPT: usize = 4 << 20;
/// Outputs of one projection that are computed together.
const OUTPUTS_MAX: usize = 4;

/// A matrix, and where its product goes.
pub(crate) type Output<'a> = (&'a Matrix, &'a mut Vec<f32>);

/// Which arithmetic a run uses; printed with every result that depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Float32 activations on any stored type.
    Exact,
    /// Activations in int8 blocks where the stored type has an integer kernel.
    Fast,
    /// As [`Profile::Fast`], with asymmetric int8 blocks of 16 for Q8_0 matrices.
    Asym16,
}

impl Profile {
    /// The name users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
            Self::Asym16 => "asym16",
        }
    }

    /// How this profile multiplies.
    pub(crate) fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Exact => Arithmetic::Exact,
            Self::Fast => Arithmetic::Fast,
            Self::Asym16 => Arithmetic::Asym16,
        }
    }
}

/// A flag that ends the current pass at the next layer.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks the current pass to end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Makes passes possible again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a run works with besides the model.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) team: Team,
    pub(crate) kernels: &'static Kernels,
    profile: Profile,
    interrupt: Interrupt,
    activations: Activations,
    /// Room for the work of attention, kept from pass to pass.
    pub(crate) groups: Vec<Group>,
    /// Room for the work of a pass and for its batch, here between passes.
    pub(crate) room: Room,
    pub(crate) batch: BatchRoom,
    /// Logits that were handed out, oldest first; whoever holds one still is not disturbed.
    logits: Vec<Arc<LogitRows>>,
    /// The account of what runs, where somebody keeps one.
    pub(crate) ledger: Option<Ledger>,
}

impl Runtime {
    /// Threads and arithmetic for runs on this machine.
    pub fn new(n_threads: NonZeroUsize, profile: Profile, interrupt: Interrupt) -> Self {
        Self {
            team: Team::new(n_threads),
            kernels: Kernels::detect(),
            profile,
            interrupt,
            activations: Activations::new(),
            groups: Vec::new(),
            room: Room::default(),
            batch: BatchRoom::default(),
            logits: Vec::new(),
            ledger: None,
        }
    }

    /// The arithmetic of this runtime.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Threads that work, the caller included.
    pub fn n_threads(&self) -> usize {
        self.team.n_threads()
    }

    /// The team, for work that is not a forward pass.
    pub fn team(&mut self) -> &mut Team {
        &mut self.team
    }

    /// The kernels chosen for this machine.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// The flag that ends a pass.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    pub(crate) fn check_interrupt(&self) -> Result<(), EngineError> {
        if self.interrupt.is_raised() {
            Err(EngineError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Room for logits that nobody else holds; of several, that of the latest pass.
    pub(crate) fn free_logits(&mut self) -> Arc<LogitRows> {
        let is_free = |kept: &mut Arc<LogitRows>| Arc::get_mut(kept).is_some();
        match self.logits.iter_mut().rposition(is_free) {
            Some(at) => self.logits.remove(at),
            None => Arc::default(),
        }
    }

    /// Keeps logits that are handed out, to use their memory again when they come free.
    pub(crate) fn keep_logits(&mut self, logits: &Arc<LogitRows>) {
        if logits.capacity() > LOGIT_VALUES_KEPT {
            return;
        }
        if self.logits.len() == LOGITS_KEPT {
            self.logits.remove(0);
        }
        self.logits.push(Arc::clone(logits));
    }

    /// `out[p, r] = sum_k w[r, k] * x[p, k]` for each matrix, all reading the same `x` (`[n_pos, cols]`), on the account of
    /// `class`.
    pub fn project(
        &mut self,
        class: OperatorClass,
        x: &[f32],
        n_pos: usize,
        outputs: &mut [(&Matrix, &mut Vec<f32>)],
    ) {
        for outputs in outputs.chunks_mut(OUTPUTS_MAX) {
            let mut each = outputs
                .iter_mut()
                .map(|(matrix, out)| (*matrix, &mut **out));
            let outputs = std::array::from_fn(|_| each.next());
            self.project_some(class, x, n_pos, outputs);
        }
    }

    /// As [`Self::project`], to those outputs that there are.
    pub(crate) fn project_some(
        &mut self,
        class: OperatorClass,
        x: &[f32],
        n_pos: usize,
        mut outputs: [Option<Output<'_>>; OUTPUTS_MAX],
    ) {
        self.within(class, |runtime| {
            let slabs = runtime.run_projection(x, n_pos, &mut outputs);
            let profile = runtime.profile;
            runtime.charge(class, || {
                let matrices = outputs.iter().flatten().map(|(matrix, _)| *matrix);
                Charge::projection(profile, n_pos, matrices, slabs)
            });
        });
    }

    /// Computes the outputs; returns in how many pieces.
    fn run_projection(
        &mut self,
        x: &[f32],
        n_pos: usize,
        outputs: &mut [Option<Output<'_>>; OUTPUTS_MAX],
    ) -> usize {
        let Some((first, _)) = outputs.iter().flatten().next() else {
            return 0;
        };
        let formats = outputs.iter().flatten().map(|(matrix, _)| matrix.format());
        let forms = self.profile.arithmetic().forms(first.cols(), formats);
        self.activations
            .prepare(&mut self.team, self.kernels, x, n_pos, forms);
        let mut each = outputs.iter_mut().flatten().map(|(matrix, out)| {
            out.resize(n_pos * matrix.rows(), 0.0);
            LinearJob {
                weight: matrix.view(),
                out: out.as_mut_slice(),
            }
        });
        let jobs: [_; OUTPUTS_MAX] = std::array::from_fn(|_| each.next());
        let mut run = |jobs: &mut [LinearJob<'_>]| {
            linear(&mut self.team, self.kernels, &self.activations, jobs)
        };
        match jobs {
            [None, ..] => 0,
            [Some(a), None, ..] => run(&mut [a]),
            [Some(a), Some(b), None, _] => run(&mut [a, b]),
            [Some(a), Some(b), Some(c), None] => run(&mut [a, b, c]),
            [Some(a), Some(b), Some(c), Some(d)] => run(&mut [a, b, c, d]),
        }
    }
}
