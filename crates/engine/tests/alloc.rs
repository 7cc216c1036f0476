//! A decode step allocates nothing, on no thread: counted by the allocator of this program.
//!
//! One test in a program of its own, because the counts are of the whole program. What may allocate is room for more
//! positions, which a sequence makes 64 at a time, and buffers that a thread of the team keeps, when it takes part in
//! an operator for the first time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;
use std::hint::black_box;
use std::num::NonZeroUsize;

use larql_engine::{
    Interrupt, Model, Profile, Runtime, Sampler, SamplingOptions, SequenceInput, SequenceState,
    WantedLogits, argmax, forward,
};
use larql_models::Checkpoint;
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::{GgufContent, GgufPlan, Quantization};
use larql_testkit::{FAMILIES, atlas, parity_fixture};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tokens of the prompt; more than the window of the fixtures that have one, which is 9.
const PROMPT: usize = 11;
/// Steps after the prompt before anything is counted.
const WARM_UP: usize = 3;
/// Positions that a sequence makes room for at a time.
const ROOM: usize = 64;
/// Buffers that a worker may still have to make after the warm-up: panels and sums of two tiles, decoded keys and values
/// (twice where heads differ in size), and a normed row.
const BUFFERS_MAX: usize = 9;
/// Where counting ends: three rooms on.
const LAST: usize = 200;

/// Calls of the allocator while `work` runs.
fn calls(work: impl FnOnce()) -> usize {
    let region = Region::new(GLOBAL);
    work();
    let change = region.change();
    change.allocations + change.reallocations + change.deallocations
}

/// One sequence that goes on by the most likely token.
struct Decode<'a> {
    model: &'a Model,
    runtime: Runtime,
    states: [SequenceState; 1],
    token: u32,
}

impl<'a> Decode<'a> {
    /// Runs the prompt and the first steps.
    fn new(model: &'a Model, n_threads: usize, profile: Profile) -> Self {
        let n_threads = NonZeroUsize::new(n_threads).unwrap();
        let mut decode = Self {
            model,
            runtime: Runtime::new(n_threads, profile, Interrupt::default()),
            states: [SequenceState::new(model.spec())],
            token: 0,
        };
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 3 + i * 37 % 290).collect();
        decode.run(&prompt);
        (0..WARM_UP).for_each(|_| decode.step());
        decode
    }

    fn run(&mut self, tokens: &[u32]) {
        let input = SequenceInput {
            tokens,
            logits: WantedLogits::Last,
        };
        let runtime = &mut self.runtime;
        let logits = forward(self.model, runtime, &[input], &mut self.states, None).unwrap();
        self.token = argmax(logits.last(0).unwrap());
    }

    fn step(&mut self) {
        self.run(&[self.token]);
    }

    /// Steps up to a position; those that called the allocator, by the position they ran.
    fn busy_steps(&mut self, until: usize) -> Vec<(usize, usize)> {
        let n_steps = until - self.states[0].n_positions();
        let mut busy = Vec::with_capacity(n_steps);
        for _ in 0..n_steps {
            let position = self.states[0].n_positions();
            let n_calls = calls(|| self.step());
            if n_calls > 0 {
                busy.push((position, n_calls));
            }
        }
        busy
    }
}

/// With one thread there is no chance in it: nothing is allocated except where room for positions is made.
fn check_one_thread(name: &str, model: &Model) {
    for profile in [Profile::Exact, Profile::Fast] {
        let mut decode = Decode::new(model, 1, profile);
        let last = LAST.min(model.spec().n_ctx as usize);
        let busy = decode.busy_steps(last);
        let positions: Vec<usize> = busy.iter().map(|(position, _)| *position).collect();
        let rooms: Vec<usize> = (ROOM..last).step_by(ROOM).collect();
        assert_eq!(
            positions, rooms,
            "{name} {profile:?}: (position, calls) {busy:?}"
        );
    }
}

/// With two, the worker may be late for all of the warm-up: what it keeps for itself it makes when it first takes part in
/// an operator. It makes each of these buffers once, so in more rounds than there are buffers some must be quiet, and the
/// noisy ones few.
fn check_two_threads(name: &str, model: &Model) {
    for profile in [Profile::Exact, Profile::Fast] {
        let mut decode = Decode::new(model, 2, profile);
        let rounds = (PROMPT + WARM_UP..ROOM).step_by(3).skip(1);
        let mut noisy: Vec<_> = rounds.map(|until| decode.busy_steps(until)).collect();
        assert!(noisy.len() > BUFFERS_MAX);
        noisy.retain(|round| !round.is_empty());
        let n_noisy = noisy.len();
        assert!(
            n_noisy <= BUFFERS_MAX,
            "{name} {profile:?}: (position, calls) {noisy:?}"
        );
    }
}

/// Atlas on the integer kernels.
fn quantized() -> Model {
    let checkpoint = Checkpoint::open(atlas()).unwrap();
    let mut plan = GgufPlan::new(&checkpoint, GgufContent::Whole).unwrap();
    let quantization = Quantization {
        mix: Mix::Q4KM,
        requantize: false,
    };
    plan.quantize(&checkpoint, quantization).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("atlas.gguf");
    let file = std::fs::File::create(&path).unwrap();
    plan.write(&checkpoint, file).unwrap();
    Model::load(&Checkpoint::open(&path).unwrap()).unwrap()
}

/// Draws at a temperature, with every limit that needs the tokens in order.
fn check_draws() {
    let options = SamplingOptions {
        temperature: 0.8,
        top_k: Some(700),
        top_p: 0.9,
        min_p: 0.01,
        seed: 5,
    };
    let mut sampler = Sampler::new(options).unwrap();
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 97) as f32 / 9.0).collect();
    black_box(sampler.sample(&logits).unwrap());
    let n_calls = calls(|| {
        black_box(sampler.sample(&logits).unwrap());
    });
    assert_eq!(n_calls, 0, "a draw");
}

#[test]
fn a_step_allocates_nothing() {
    // The count counts.
    assert_eq!(calls(|| drop(black_box(vec![0u8]))), 2);
    check_draws();
    for name in FAMILIES {
        let model = Model::load(&Checkpoint::open(&parity_fixture(name)).unwrap()).unwrap();
        check_one_thread(name, &model);
        check_two_threads(name, &model);
    }
    let model = quantized();
    check_one_thread("atlas", &model);
    check_two_threads("atlas", &model);
}
