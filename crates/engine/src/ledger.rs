//! Where the time of a pass goes, and what it reads: an account per class of operators.
//!
//! Kept only when it was asked for ([`Runtime::keep_ledger`]); without it an operator costs one comparison more. One clock
//! is shared by the classes: entering a class stops the one around it, so that no moment is counted twice, and
//! [`OperatorClass::Other`] is what runs outside every other class, timed like the rest. The time of the whole is taken by
//! a second clock, so that the classes can be checked against it.
//!
//! Bytes are those that the kernels ask for, charged as they are read: a matrix once per call, because some tiles meet all
//! positions, block after block, before the next ones are loaded. What the caches give instead of memory is not known
//! here. Rows of embeddings are not charged.

use std::time::{Duration, Instant};

use larql_kernels::Form;

use crate::attention::Heads;
use crate::model::Matrix;
use crate::runtime::{Profile, Runtime};
use crate::tap::RowPlace;

/// Bytes that the integer kernels read per block of 32 activations: the quants, a scale, a sum, two sums of halves and a
/// scaled sum.
const BLOCK_BYTES: u64 = 32 + 4 + 4 + 2 * 2 + 4;
/// Bytes of an asymmetric block of 16: the quants, a scale and a middle.
const ASYMMETRIC_BYTES: u64 = 16 + 4 + 4;
const F32_BYTES: u64 = size_of::<f32>() as u64;

/// What an operator is for; every operator belongs to one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorClass {
    /// Projections of softmax attention, and attention itself.
    Attention,
    /// Projections of recurrent mixers, their convolutions and their recurrence.
    Recurrent,
    /// Projections of FFNs and routers, and activations.
    Ffn,
    /// The projection to logits.
    Head,
    /// Everything else: norms, RoPE, residual additions, embeddings, and what stands beside mixer and FFN.
    Other,
}

impl OperatorClass {
    /// All classes, in the order they are listed in.
    pub const ALL: [Self; 5] = [
        Self::Attention,
        Self::Recurrent,
        Self::Ffn,
        Self::Head,
        Self::Other,
    ];

    /// The name users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Recurrent => "recurrent",
            Self::Ffn => "ffn",
            Self::Head => "head",
            Self::Other => "other",
        }
    }

    fn idx(self) -> usize {
        match self {
            Self::Attention => 0,
            Self::Recurrent => 1,
            Self::Ffn => 2,
            Self::Head => 3,
            Self::Other => 4,
        }
    }
}

/// What one class, or one operator of it, did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Operators that ran: projections that share their input, attentions, recurrences, activations.
    pub calls: u64,
    /// Pieces that the threads ran of them, together.
    pub slabs: u64,
    /// Bytes of weights read.
    pub stored_bytes: u64,
    /// Other bytes: activations in the form the kernel reads, outputs, and what the sequences remember.
    pub transient_bytes: u64,
    /// Of these, keys, values and recurrent states.
    pub state_bytes: u64,
    /// Multiply-adds on 8-bit activations.
    pub integer_macs: u64,
    /// Multiply-adds in float32.
    pub float_macs: u64,
    /// Time in the class.
    pub wall: Duration,
}

impl Charge {
    fn add(&mut self, more: &Self) {
        let Self {
            calls,
            slabs,
            stored_bytes,
            transient_bytes,
            state_bytes,
            integer_macs,
            float_macs,
            wall,
        } = *more;
        self.calls += calls;
        self.slabs += slabs;
        self.stored_bytes += stored_bytes;
        self.transient_bytes += transient_bytes;
        self.state_bytes += state_bytes;
        self.integer_macs += integer_macs;
        self.float_macs += float_macs;
        self.wall += wall;
    }

    /// Several matrices times the same `n_pos` positions, in `slabs` pieces.
    pub(crate) fn projection<'a>(
        profile: Profile,
        n_pos: usize,
        matrices: impl Iterator<Item = &'a Matrix>,
        slabs: usize,
    ) -> Self {
        let n_pos = n_pos as u64;
        let mut charge = Self {
            calls: 1,
            slabs: slabs as u64,
            ..Self::default()
        };
        for matrix in matrices {
            let (rows, cols) = (matrix.rows() as u64, matrix.cols() as u64);
            let macs = n_pos * rows * cols;
            let form = profile.arithmetic().form(matrix.format(), matrix.cols());
            let input = match form {
                Form::Floats => cols * F32_BYTES,
                Form::Blocks => cols / 32 * BLOCK_BYTES,
                Form::Asymmetric => cols / 16 * ASYMMETRIC_BYTES,
            };
            match form {
                Form::Floats => charge.float_macs += macs,
                Form::Blocks | Form::Asymmetric => charge.integer_macs += macs,
            }
            charge.stored_bytes += matrix.n_bytes() as u64;
            charge.transient_bytes += n_pos * (input + rows * F32_BYTES);
        }
        charge
    }

    /// Attention of `rows` over the keys that each of them sees. A position is charged for its own keys, although
    /// positions that are worked out together share the loads.
    pub(crate) fn attention(
        rows: &[RowPlace],
        heads: &Heads<'_>,
        profile: Profile,
        slabs: usize,
    ) -> Self {
        let window = heads.window.map_or(usize::MAX, |window| window as usize);
        let n_keys: u64 = rows
            .iter()
            .map(|row| (row.position + 1).min(window) as u64)
            .sum();
        let (per_key, n_heads) = ((heads.d_key + heads.d_value) as u64, heads.n_heads as u64);
        let kept = crate::state::kept_format(profile).block_bytes() as u64;
        let state_bytes = n_keys * heads.n_kv_heads as u64 * per_key * kept;
        Self {
            calls: 1,
            slabs: slabs as u64,
            // A query and an output of each head beside the keys and values.
            transient_bytes: state_bytes + rows.len() as u64 * n_heads * per_key * F32_BYTES,
            state_bytes,
            float_macs: n_keys * n_heads * per_key,
            ..Self::default()
        }
    }

    /// `n_pos` steps of recurrent states of `n_values` values, driven by `n_inputs` values each. Whatever the number of
    /// times a step walks over a state, it comes from memory once.
    pub(crate) fn recurrence(n_pos: usize, n_values: usize, n_inputs: usize, slabs: usize) -> Self {
        /// Decay, recall, update and read of a value of the state.
        const MACS_PER_VALUE: u64 = 4;
        let n_pos = n_pos as u64;
        let state_bytes = n_pos * n_values as u64 * F32_BYTES;
        Self {
            calls: 1,
            slabs: slabs as u64,
            transient_bytes: state_bytes + n_pos * n_inputs as u64 * F32_BYTES,
            state_bytes,
            float_macs: n_pos * n_values as u64 * MACS_PER_VALUE,
            ..Self::default()
        }
    }

    /// An operator that reads and writes `n_values` values in all and multiplies no matrix.
    pub(crate) fn elementwise(n_values: usize, slabs: usize) -> Self {
        Self {
            calls: 1,
            slabs: slabs as u64,
            transient_bytes: n_values as u64 * F32_BYTES,
            ..Self::default()
        }
    }
}

/// The classes and the whole of what ran while it was kept.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    classes: [Charge; OperatorClass::ALL.len()],
    n_passes: u64,
    total: Duration,
    clock: Option<Clock>,
}

/// The class that is running, while something is measured.
#[derive(Debug, Clone, Copy)]
struct Clock {
    class: OperatorClass,
    since: Instant,
}

impl Ledger {
    /// What a class did.
    pub fn class(&self, class: OperatorClass) -> &Charge {
        &self.classes[class.idx()]
    }

    /// What all classes did.
    pub fn sum(&self) -> Charge {
        let mut sum = Charge::default();
        self.classes.iter().for_each(|charge| sum.add(charge));
        sum
    }

    /// Forward passes.
    pub fn n_passes(&self) -> u64 {
        self.n_passes
    }

    /// Time of everything that was measured, by a clock of its own.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Adds what another ledger has.
    pub fn add(&mut self, more: &Self) {
        for (charge, more) in self.classes.iter_mut().zip(&more.classes) {
            charge.add(more);
        }
        self.n_passes += more.n_passes;
        self.total += more.total;
    }

    /// Lets the clock run for `class`; returns the class that it ran for.
    fn switch(&mut self, class: OperatorClass) -> Option<OperatorClass> {
        let clock = self.clock.as_mut()?;
        let (now, before) = (Instant::now(), clock.class);
        self.classes[before.idx()].wall += now - clock.since;
        *clock = Clock { class, since: now };
        Some(before)
    }
}

impl Runtime {
    /// Begins an empty ledger.
    pub fn keep_ledger(&mut self) {
        self.ledger = Some(Ledger::default());
    }

    /// Ends the ledger and hands it out, if one was kept.
    pub fn take_ledger(&mut self) -> Option<Ledger> {
        self.ledger.take()
    }

    /// Runs `work` with the clock of the ledger on. Passes do so by themselves; around several of them it also counts what
    /// stands between them.
    pub fn measured<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let start = match &mut self.ledger {
            Some(ledger) if ledger.clock.is_none() => {
                let now = Instant::now();
                ledger.clock = Some(Clock {
                    class: OperatorClass::Other,
                    since: now,
                });
                now
            }
            Some(_) | None => return work(self),
        };
        let result = work(self);
        if let Some(ledger) = &mut self.ledger {
            ledger.switch(OperatorClass::Other);
            ledger.clock = None;
            ledger.total += start.elapsed();
        }
        result
    }

    /// Runs `work` on the account of `class`.
    pub(crate) fn within<T>(
        &mut self,
        class: OperatorClass,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outer = self.ledger.as_mut().and_then(|ledger| ledger.switch(class));
        let result = work(self);
        if let (Some(ledger), Some(outer)) = (&mut self.ledger, outer) {
            ledger.switch(outer);
        }
        result
    }

    /// Charges an operator to `class`, if a ledger is kept; its time comes from [`Self::within`].
    pub(crate) fn charge(&mut self, class: OperatorClass, charge: impl FnOnce() -> Charge) {
        if let Some(ledger) = &mut self.ledger {
            debug_assert!(
                ledger.clock.is_none_or(|clock| clock.class == class),
                "an operator is charged to the class whose clock runs"
            );
            ledger.classes[class.idx()].add(&charge());
        }
    }

    /// Counts a forward pass, if a ledger is kept.
    pub(crate) fn count_pass(&mut self) {
        if let Some(ledger) = &mut self.ledger {
            ledger.n_passes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::thread::sleep;

    use super::*;
    use crate::runtime::Interrupt;

    fn runtime() -> Runtime {
        Runtime::new(NonZeroUsize::MIN, Profile::Exact, Interrupt::default())
    }

    /// Sleeps last at least as long as they are asked to, so each class has its own and no other's.
    #[test]
    fn a_class_inside_another_stops_its_clock() {
        let ms = Duration::from_millis;
        let mut runtime = runtime();
        runtime.keep_ledger();
        runtime.measured(|runtime| {
            sleep(ms(10));
            runtime.within(OperatorClass::Ffn, |runtime| {
                sleep(ms(20));
                runtime.within(OperatorClass::Attention, |_| sleep(ms(40)));
                sleep(ms(20));
            });
            sleep(ms(10));
        });
        let ledger = runtime.take_ledger().unwrap();
        let wall = |class| ledger.class(class).wall;
        assert!(wall(OperatorClass::Other) >= ms(20));
        assert!(wall(OperatorClass::Ffn) >= ms(40));
        assert!(wall(OperatorClass::Attention) >= ms(40));
        assert_eq!(wall(OperatorClass::Head), Duration::ZERO);
        // What is counted once cannot be more than the whole.
        assert!(ledger.sum().wall <= ledger.total());
    }

    #[test]
    fn outside_of_a_measurement_no_time_passes() {
        let mut runtime = runtime();
        runtime.keep_ledger();
        runtime.within(OperatorClass::Head, |_| sleep(Duration::from_millis(1)));
        let ledger = runtime.take_ledger().unwrap();
        assert_eq!((ledger.sum().wall, ledger.total()), Default::default());
    }

    /// The form of activations in the kernels is their business; this is what its fields hold per block of 32.
    #[test]
    fn bytes_of_activations_follow_the_arithmetic() {
        let form = |profile, format: larql_kernels::Format, cols: usize| {
            let n_bytes = larql_kernels::tile_bytes(format, 5, cols).unwrap();
            let tiles = larql_formats::Arena::new().alloc(n_bytes).unwrap();
            let matrix = Matrix::new(tiles, format, 5, cols);
            Charge::projection(profile, 3, [&matrix].into_iter(), 1)
        };
        use larql_kernels::Format;
        let fast = form(Profile::Fast, Format::Q8_0, 96);
        assert_eq!(fast.transient_bytes, 3 * (96 * 3 / 2 + 5 * 4));
        assert_eq!((fast.integer_macs, fast.float_macs), (3 * 5 * 96, 0));
        // Eight rows are stored for five.
        assert_eq!(fast.stored_bytes, 8 * 3 * 34);
        let exact = form(Profile::Exact, Format::Q8_0, 96);
        assert_eq!(exact.transient_bytes, 3 * (96 * 4 + 5 * 4));
        assert_eq!((exact.integer_macs, exact.float_macs), (0, 3 * 5 * 96));
        let asym16 = form(Profile::Asym16, Format::Q8_0, 96);
        assert_eq!(asym16.transient_bytes, 3 * (96 * 3 / 2 + 5 * 4));
        assert_eq!((asym16.integer_macs, asym16.float_macs), (3 * 5 * 96, 0));
        // No integer kernel for floats, whatever the profile.
        let floats = form(Profile::Fast, Format::F32, 96);
        assert_eq!((floats.integer_macs, floats.float_macs), (0, 3 * 5 * 96));
    }
}
