//! The ledger accounts for all of a pass: its time, its weights and its operators.
//!
//! Each test runs every family's fixture, so that an operator that is not charged, or charged elsewhere, is missed in the
//! family that has it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::time::Duration;

use larql_engine::{
    EngineError, Interrupt, Ledger, Logits, Model, OperatorClass, Profile, Runtime, SequenceInput,
    SequenceState, WantedLogits, forward,
};
use larql_models::Checkpoint;
use larql_models::spec::{Ffn, Mixer, ModelSpec};
use larql_testkit::{FAMILIES, atlas, parity_fixture};

/// Of the whole that the classes may miss.
const SHARE_MISSED_MAX: f64 = 0.02;
/// What a thread that loses its core between two clocks may add.
const SLACK: Duration = Duration::from_micros(200);
/// Positions of a prompt; more than the window of the fixtures that have one, which is 9.
const PROMPT: usize = 19;

fn model(name: &str) -> Model {
    Model::load(&Checkpoint::open(&parity_fixture(name)).unwrap()).unwrap()
}

fn runtime(n_threads: usize, profile: Profile) -> Runtime {
    Runtime::new(
        NonZeroUsize::new(n_threads).unwrap(),
        profile,
        Interrupt::default(),
    )
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 3 + i * 37 % 290).collect()
}

fn run(
    model: &Model,
    runtime: &mut Runtime,
    states: &mut [SequenceState],
    tokens: &[u32],
) -> Result<Logits, EngineError> {
    let input = SequenceInput {
        tokens,
        logits: WantedLogits::Last,
    };
    forward(model, runtime, &[input], states, None)
}

/// The ledgers of a prompt and of the step after it.
fn prompt_and_step(model: &Model, runtime: &mut Runtime) -> [Ledger; 2] {
    let mut states = [SequenceState::new(model.spec())];
    [tokens(PROMPT), vec![5]].map(|tokens| {
        runtime.keep_ledger();
        run(model, runtime, &mut states, &tokens).unwrap();
        runtime.take_ledger().unwrap()
    })
}

fn assert_whole(ledger: &Ledger, what: &str) {
    let (sum, total) = (ledger.sum().wall, ledger.total());
    assert!(total > Duration::ZERO, "{what}: nothing was timed");
    let missed = total.abs_diff(sum);
    let allowed = total.mul_f64(SHARE_MISSED_MAX) + SLACK;
    assert!(missed <= allowed, "{what}: {sum:?} of {total:?}");
}

#[test]
fn the_classes_add_up_to_the_whole() {
    for name in FAMILIES {
        let model = model(name);
        for profile in [Profile::Exact, Profile::Fast] {
            let mut runtime = runtime(2, profile);
            let [prompt, step] = prompt_and_step(&model, &mut runtime);
            assert_whole(&prompt, name);
            assert_whole(&step, name);
            assert_eq!((prompt.n_passes(), step.n_passes()), (1, 1), "{name}");
        }
    }
}

/// What a model of some size spends outside of projections, attention and activations is little; a class that stops its
/// clock early shows here.
#[test]
fn the_classes_take_the_time_that_they_work() {
    let model = Model::load(&Checkpoint::open(atlas()).unwrap()).unwrap();
    let mut runtime = runtime(1, Profile::Exact);
    let mut states = [SequenceState::new(model.spec())];
    run(&model, &mut runtime, &mut states, &tokens(PROMPT)).unwrap();
    runtime.keep_ledger();
    for token in tokens(30) {
        run(&model, &mut runtime, &mut states, &[token]).unwrap();
    }
    let ledger = runtime.take_ledger().unwrap();
    assert_whole(&ledger, "atlas");
    let share = |class| ledger.class(class).wall.as_secs_f64() / ledger.total().as_secs_f64();
    for class in [
        OperatorClass::Attention,
        OperatorClass::Ffn,
        OperatorClass::Head,
    ] {
        assert!(share(class) > 0.02, "{}: {}", class.name(), share(class));
    }
    let other = share(OperatorClass::Other);
    assert!(other > 0.0 && other < 0.5, "other: {other}");
    assert_eq!(ledger.class(OperatorClass::Recurrent).wall, Duration::ZERO);
}

#[test]
fn a_step_reads_every_weight_once() {
    for name in FAMILIES {
        let model = model(name);
        let [prompt, step] = prompt_and_step(&model, &mut runtime(1, Profile::Fast));
        let stored = step.sum().stored_bytes;
        assert_eq!(stored, model.weight_bytes_per_token(), "{name}");
        let head = step.class(OperatorClass::Head).stored_bytes;
        assert_eq!(head, model.unembedding().n_bytes() as u64, "{name}");
        let is_mixture = |ffn: &Ffn| matches!(ffn, Ffn::Moe(_));
        if !model
            .spec()
            .layers
            .iter()
            .any(|layer| is_mixture(&layer.ffn))
        {
            // All positions meet a tile when it is read.
            assert_eq!(prompt.sum().stored_bytes, stored, "{name}");
        }
    }
}

/// Calls of the mixers, and of dense FFNs, in one pass.
fn calls(spec: &ModelSpec) -> [u64; 3] {
    let (mut attention, mut recurrent, mut ffn) = (0, 0, 0);
    for layer in &spec.layers {
        match &layer.mixer {
            // Inputs, attention, output.
            Mixer::Attention(_) => attention += 3,
            // The latents, keys and values out of one, attention, output; queries out of the other.
            Mixer::Mla(mla) => attention += 4 + u64::from(mla.q_rank.is_some()),
            // Two low-rank pairs, inputs, convolutions, recurrence, output.
            Mixer::Kda(_) => recurrent += 4 + 4,
            Mixer::GatedDelta(_) => recurrent += 1 + 4,
        }
        match &layer.ffn {
            Ffn::Gated(_) | Ffn::Plain(_) => ffn += 3,
            Ffn::Moe(_) => {}
        }
    }
    [attention, recurrent, ffn]
}

#[test]
fn every_operator_is_on_the_account_of_its_class() {
    for name in FAMILIES {
        let model = model(name);
        let [attention, recurrent, ffn] = calls(model.spec());
        let mut runtime = runtime(1, Profile::Exact);
        for ledger in prompt_and_step(&model, &mut runtime) {
            let of = |class| ledger.class(class).calls;
            let mixers = [OperatorClass::Attention, OperatorClass::Recurrent].map(of);
            assert_eq!(mixers, [attention, recurrent], "{name}");
            assert_eq!(of(OperatorClass::Head), 1, "{name}");
            let is_dense = |ffn: &Ffn| matches!(ffn, Ffn::Gated(_) | Ffn::Plain(_));
            if model.spec().layers.iter().all(|layer| is_dense(&layer.ffn)) {
                assert_eq!(of(OperatorClass::Ffn), ffn, "{name}");
            } else {
                // At least a router, and an expert with its three.
                assert!(of(OperatorClass::Ffn) >= ffn + 4, "{name}");
            }
        }
    }
}

/// Bytes of keys, values and states that the step after `PROMPT` positions reads.
fn state_bytes(spec: &ModelSpec) -> u64 {
    let values = |mixer: &Mixer| match mixer {
        Mixer::Attention(a) => {
            let n_keys = a.window.unwrap_or(u32::MAX).min(PROMPT as u32 + 1);
            n_keys * a.n_kv_heads * 2 * a.d_head
        }
        Mixer::Mla(m) => (PROMPT as u32 + 1) * m.n_heads * (m.d_nope + m.d_rope + m.d_value),
        Mixer::Kda(k) => k.n_heads * k.d_head * k.d_head,
        Mixer::GatedDelta(d) => d.n_value_heads * d.d_key * d.d_value,
    };
    let values: u32 = spec.layers.iter().map(|layer| values(&layer.mixer)).sum();
    4 * u64::from(values)
}

#[test]
fn a_step_reads_what_it_sees_of_the_past() {
    for name in FAMILIES {
        let model = model(name);
        let [_, step] = prompt_and_step(&model, &mut runtime(1, Profile::Exact));
        let sum = step.sum();
        assert_eq!(sum.state_bytes, state_bytes(model.spec()), "{name}");
        assert!(sum.transient_bytes > sum.state_bytes, "{name}");
    }
    // Keys and values of `fast` are half as wide.
    let model = model("llama");
    let [_, step] = prompt_and_step(&model, &mut runtime(1, Profile::Fast));
    assert_eq!(2 * step.sum().state_bytes, state_bytes(model.spec()));
}

#[test]
fn multiply_adds_are_those_of_the_shapes() {
    let model = model("llama");
    let spec = model.spec();
    let [prompt, step] = prompt_and_step(&model, &mut runtime(1, Profile::Exact));
    let Mixer::Attention(attention) = &spec.layers[0].mixer else {
        panic!("llama attends");
    };
    let head = step.class(OperatorClass::Head);
    let vocab_by_model = u64::from(spec.d_vocab) * u64::from(spec.d_model);
    assert_eq!((head.integer_macs, head.float_macs), (0, vocab_by_model));
    // Only the last position has logits.
    let of_prompt = prompt.class(OperatorClass::Head);
    assert_eq!(of_prompt.float_macs, vocab_by_model);
    let d_mlp = model.ffns(0).next().unwrap().up.rows() as u64;
    let ffn = prompt.class(OperatorClass::Ffn).float_macs;
    let dense = 3 * d_mlp * u64::from(spec.d_model) * spec.n_layers() as u64;
    assert_eq!(ffn, PROMPT as u64 * dense);
    // 1 + 2 + .. keys for the positions of the prompt.
    let n_keys = (PROMPT * (PROMPT + 1) / 2) as u64;
    let (q, kv) = (
        u64::from(attention.n_heads * attention.d_head),
        u64::from(attention.n_kv_heads * attention.d_head),
    );
    let d_model = u64::from(spec.d_model);
    let projections = PROMPT as u64 * d_model * 2 * (q + kv);
    let want = (projections + n_keys * 2 * q) * spec.n_layers() as u64;
    assert_eq!(prompt.class(OperatorClass::Attention).float_macs, want);
}

#[test]
fn slabs_are_the_pieces_that_ran() {
    let model = Model::load(&Checkpoint::open(atlas()).unwrap()).unwrap();
    for ledger in prompt_and_step(&model, &mut runtime(1, Profile::Exact)) {
        let sum = ledger.sum();
        assert_eq!(sum.slabs, sum.calls);
    }
    for ledger in prompt_and_step(&model, &mut runtime(2, Profile::Exact)) {
        let head = ledger.class(OperatorClass::Head);
        // Two for each thread: it has between one and one and a half megabytes.
        assert_eq!((head.calls, head.slabs), (1, 4));
    }
}

#[test]
fn nothing_is_kept_unless_asked_and_keeping_changes_nothing() {
    let model = model("gemma3");
    let mut runtime = runtime(2, Profile::Exact);
    let tokens = tokens(PROMPT);
    let mut states = [SequenceState::new(model.spec())];
    let without = run(&model, &mut runtime, &mut states, &tokens).unwrap();
    assert!(runtime.take_ledger().is_none());
    let mut states = [SequenceState::new(model.spec())];
    runtime.keep_ledger();
    let with = run(&model, &mut runtime, &mut states, &tokens).unwrap();
    assert!(runtime.take_ledger().is_some() && runtime.take_ledger().is_none());
    assert_eq!(with, without);
}

/// Between passes nothing is timed, unless they are measured together.
#[test]
fn the_time_between_passes_counts_when_it_is_asked_for() {
    const PAUSE: Duration = Duration::from_millis(20);
    let model = model("llama");
    let mut runtime = runtime(1, Profile::Exact);
    let two = |runtime: &mut Runtime| {
        let mut states = [SequenceState::new(model.spec())];
        run(&model, runtime, &mut states, &[3, 4]).unwrap();
        std::thread::sleep(PAUSE);
        run(&model, runtime, &mut states, &[5]).unwrap();
    };
    runtime.keep_ledger();
    two(&mut runtime);
    let apart = runtime.take_ledger().unwrap();
    runtime.keep_ledger();
    runtime.measured(two);
    let together = runtime.take_ledger().unwrap();
    assert_whole(&apart, "apart");
    assert_whole(&together, "together");
    assert_eq!((apart.n_passes(), together.n_passes()), (2, 2));
    assert!(together.class(OperatorClass::Other).wall >= PAUSE);
    let mut both = apart.clone();
    both.add(&together);
    assert_eq!(both.total(), apart.total() + together.total());
    assert_eq!(both.sum().calls, 2 * apart.sum().calls);
}

#[test]
fn a_pass_that_fails_leaves_a_whole_ledger() {
    let model = model("qwen3");
    let mut runtime = runtime(1, Profile::Exact);
    let mut states = [SequenceState::new(model.spec())];
    runtime.keep_ledger();
    runtime.interrupt().raise();
    assert!(matches!(
        run(&model, &mut runtime, &mut states, &[3]),
        Err(EngineError::Interrupted)
    ));
    runtime.interrupt().clear();
    run(&model, &mut runtime, &mut states, &[3]).unwrap();
    let ledger = runtime.take_ledger().unwrap();
    assert_whole(&ledger, "after a failure");
    assert_eq!(ledger.n_passes(), 2);
    assert_eq!(ledger.class(OperatorClass::Head).calls, 1);
}
