//! The same tokens give the same bits, however they are fed.
//!
//! Each test runs every family's fixture, whose window (9) is shorter than the prompts, and compares bit patterns.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;

use larql_engine::{
    EngineError, Interrupt, Logits, Model, Profile, Recorder, RowPlace, Runtime, SequenceInput,
    SequenceState, Tap, TapPoint, WantedLogits, forward,
};
use larql_formats::safetensors::SafetensorsFile;
use larql_models::Checkpoint;
use larql_models::spec::{BlockShape, Ffn, KvSource, Mixer};
use larql_testkit::{FAMILIES, parity_fixture};

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

/// Ids that repeat nowhere near each other.
fn tokens(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| 3 + (i * 37 + salt * 101) % 290)
        .collect()
}

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

fn all_bits(logits: &Logits) -> Vec<u32> {
    logits.rows().flat_map(|(_, row)| bits(row)).collect()
}

/// Logits of every position, with the tokens fed in pieces of the given lengths.
fn run_split(model: &Model, runtime: &mut Runtime, tokens: &[u32], lengths: &[usize]) -> Vec<u32> {
    let mut states = [SequenceState::new(model.spec())];
    let (mut out, mut at) = (Vec::new(), 0);
    for length in lengths {
        let input = SequenceInput {
            tokens: &tokens[at..at + length],
            logits: WantedLogits::All,
        };
        out.extend(all_bits(
            &forward(model, runtime, &[input], &mut states, None).unwrap(),
        ));
        at += length;
    }
    assert_eq!((at, states[0].n_positions()), (tokens.len(), tokens.len()));
    out
}

/// Tokens of the split test, and the window its models get where they have one.
const SPLIT_TOKENS: usize = 48;
const SPLIT_WINDOW: u32 = 8;

/// A fixture whose windowed layers see [`SPLIT_WINDOW`] keys.
fn windowed(name: &str) -> Model {
    let from = parity_fixture(name);
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        from.join("model.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    let text = std::fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    if let Some(window) = config.get_mut("sliding_window")
        && window.as_u64() == Some(9)
    {
        *window = SPLIT_WINDOW.into();
    }
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    Model::load(&Checkpoint::open(dir.path()).unwrap()).unwrap()
}

#[test]
fn decode_equals_prefill_at_every_split() {
    for name in FAMILIES {
        let (model, tokens) = (windowed(name), tokens(SPLIT_TOKENS, 1));
        for (profile, step) in [(Profile::Exact, 1), (Profile::Fast, 12)] {
            // One thread: these models are too small to share out, and the number of threads has its own test.
            let mut runtime = runtime(1, profile);
            let whole = run_split(&model, &mut runtime, &tokens, &[SPLIT_TOKENS]);
            for split in (1..SPLIT_TOKENS).step_by(step) {
                let lengths = [split, SPLIT_TOKENS - split];
                let parts = run_split(&model, &mut runtime, &tokens, &lengths);
                assert!(parts == whole, "{name} {profile:?}: split at {split}");
            }
            assert!(
                run_split(&model, &mut runtime, &tokens, &[1; SPLIT_TOKENS]) == whole,
                "{name} {profile:?}: one by one"
            );
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    for name in FAMILIES {
        let (model, tokens) = (model(name), tokens(19, 2));
        let one = run_split(
            &model,
            &mut runtime(1, Profile::Exact),
            &tokens,
            &[12, 1, 6],
        );
        for n_threads in [2, 3] {
            let many = run_split(
                &model,
                &mut runtime(n_threads, Profile::Exact),
                &tokens,
                &[12, 1, 6],
            );
            assert!(many == one, "{name}: {n_threads} threads");
        }
    }
}

#[test]
fn a_batch_of_unequal_sequences_equals_each_alone() {
    for name in FAMILIES {
        let model = model(name);
        let mut runtime = runtime(2, Profile::Exact);
        let sequences = [tokens(17, 3), tokens(1, 4), tokens(11, 5)];
        let mut states: Vec<SequenceState> = sequences
            .iter()
            .map(|_| SequenceState::new(model.spec()))
            .collect();
        // One of them starts later than the others.
        let head = [SequenceInput {
            tokens: &sequences[0][..5],
            logits: WantedLogits::Absent,
        }];
        forward(&model, &mut runtime, &head, &mut states[..1], None).unwrap();
        let batch = [
            SequenceInput {
                tokens: &sequences[0][5..],
                logits: WantedLogits::Last,
            },
            SequenceInput {
                tokens: &sequences[1],
                logits: WantedLogits::All,
            },
            SequenceInput {
                tokens: &sequences[2],
                logits: WantedLogits::All,
            },
        ];
        let together = forward(&model, &mut runtime, &batch, &mut states, None).unwrap();
        for (i, sequence) in sequences.iter().enumerate() {
            let mut alone = [SequenceState::new(model.spec())];
            let input = [SequenceInput {
                tokens: sequence,
                logits: WantedLogits::Last,
            }];
            let logits = forward(&model, &mut runtime, &input, &mut alone, None).unwrap();
            assert!(
                bits(together.last(i).unwrap()) == bits(logits.last(0).unwrap()),
                "{name}: sequence {i}"
            );
        }
    }
}

#[test]
fn observing_every_point_changes_nothing() {
    for name in FAMILIES {
        let (model, tokens) = (model(name), tokens(14, 6));
        let mut runtime = runtime(2, Profile::Exact);
        let whole = run_split(&model, &mut runtime, &tokens, &[14]);
        let mut recorder = Recorder::new(&TapPoint::ALL);
        let mut states = [SequenceState::new(model.spec())];
        let input = [SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::All,
        }];
        let logits = forward(
            &model,
            &mut runtime,
            &input,
            &mut states,
            Some(&mut recorder),
        )
        .unwrap();
        assert!(all_bits(&logits) == whole, "{name}");
        let spec = model.spec();
        let layers_with = |has: fn(&larql_models::spec::LayerSpec) -> bool| {
            spec.layers.iter().filter(|layer| has(layer)).count()
        };
        for point in TapPoint::ALL {
            let seen = recorder
                .rows()
                .iter()
                .filter(|row| row.point == point)
                .count();
            let layers = match point {
                TapPoint::FinalNorm | TapPoint::Logits => 1,
                TapPoint::ResidMid => layers_with(|layer| match layer.block {
                    BlockShape::Parallel { .. } => false,
                    BlockShape::PreNorm { .. }
                    | BlockShape::Sandwich { .. }
                    | BlockShape::PostNorm { .. } => true,
                }),
                TapPoint::MoeWeights => layers_with(|layer| matches!(layer.ffn, Ffn::Moe(_))),
                TapPoint::AttnPattern => layers_with(|layer| match layer.mixer {
                    Mixer::Attention(_) | Mixer::Mla(_) => true,
                    Mixer::Kda(_) | Mixer::GatedDelta(_) => false,
                }),
                TapPoint::AttnK | TapPoint::AttnV => layers_with(|layer| match &layer.mixer {
                    Mixer::Attention(attention) => !matches!(attention.kv, KvSource::SharedFrom(_)),
                    Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => true,
                }),
                _ => spec.n_layers(),
            };
            assert_eq!(seen, layers * tokens.len(), "{name}: {}", point.name());
        }
    }
}

/// Scales one head's weighted values, one layer's gate features, or fails.
struct Edit {
    point: TapPoint,
    layer: usize,
    position: usize,
    columns: std::ops::Range<usize>,
    outcome: Result<f32, String>,
}

impl Tap for Edit {
    fn wants(&self, point: TapPoint, layer: usize) -> bool {
        (point, layer) == (self.point, self.layer)
    }

    fn visit(
        &mut self,
        _: TapPoint,
        _: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String> {
        if place.position == self.position {
            let factor = self.outcome.clone()?;
            row[self.columns.clone()]
                .iter_mut()
                .for_each(|x| *x *= factor);
        }
        Ok(())
    }
}

#[test]
fn an_edit_acts_from_its_position_on_and_only_there() {
    let (model, tokens) = (model("gemma3"), tokens(12, 7));
    let mut runtime = runtime(2, Profile::Exact);
    let whole = run_split(&model, &mut runtime, &tokens, &[12]);
    let d_vocab = model.spec().d_vocab as usize;
    let mut edited = |point, factor: f32| {
        let mut edit = Edit {
            point,
            layer: 1,
            position: 5,
            columns: 24..48,
            outcome: Ok(factor),
        };
        let mut states = [SequenceState::new(model.spec())];
        let input = [SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::All,
        }];
        all_bits(&forward(&model, &mut runtime, &input, &mut states, Some(&mut edit)).unwrap())
    };
    for point in [
        TapPoint::AttnZ,
        TapPoint::MlpPost,
        TapPoint::AttnV,
        TapPoint::ResidMid,
        TapPoint::ResidPost,
    ] {
        assert!(
            edited(point, 1.0) == whole,
            "{}: an edit that writes the same values",
            point.name()
        );
        let changed = edited(point, -3.0);
        assert!(
            changed[..5 * d_vocab] == whole[..5 * d_vocab],
            "{}: earlier positions",
            point.name()
        );
        assert!(
            changed[5 * d_vocab..6 * d_vocab] != whole[5 * d_vocab..6 * d_vocab],
            "{}: its own",
            point.name()
        );
        assert!(
            changed[11 * d_vocab..] != whole[11 * d_vocab..],
            "{}: later positions",
            point.name()
        );
    }
}

#[test]
fn a_pattern_edit_moves_one_query_head_only() {
    let (model, tokens) = (model("llama"), tokens(9, 8));
    let mut runtime = runtime(2, Profile::Exact);
    let mut z = |edit: Option<&mut dyn Tap>| {
        let mut recorder = Both(Recorder::new(&[TapPoint::AttnZ]), edit);
        let mut states = [SequenceState::new(model.spec())];
        let input = [SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::Absent,
        }];
        forward(
            &model,
            &mut runtime,
            &input,
            &mut states,
            Some(&mut recorder),
        )
        .unwrap();
        recorder
            .0
            .find(
                TapPoint::AttnZ,
                0,
                RowPlace {
                    sequence: 0,
                    position: 8,
                },
            )
            .unwrap()
            .to_vec()
    };
    let plain = z(None);
    // Head 3's row of a pattern over 9 keys.
    let mut edit = Edit {
        point: TapPoint::AttnPattern,
        layer: 0,
        position: 8,
        columns: 27..36,
        outcome: Ok(2.0),
    };
    let changed = z(Some(&mut edit));
    let d_head = plain.len() / 4;
    assert!(
        plain[..3 * d_head] == changed[..3 * d_head],
        "heads 0 to 2 changed"
    );
    assert!(
        plain[3 * d_head..] != changed[3 * d_head..],
        "head 3 did not change"
    );
}

struct Both<'a>(Recorder, Option<&'a mut dyn Tap>);

impl Tap for Both<'_> {
    fn wants(&self, point: TapPoint, layer: usize) -> bool {
        self.0.wants(point, layer) || self.1.as_ref().is_some_and(|tap| tap.wants(point, layer))
    }

    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String> {
        if let Some(tap) = self.1.as_mut().filter(|tap| tap.wants(point, layer)) {
            tap.visit(point, layer, place, row)?;
        }
        if self.0.wants(point, layer) {
            self.0.visit(point, layer, place, row)
        } else {
            Ok(())
        }
    }
}

#[test]
fn windows_hide_exactly_the_older_keys() {
    let (model, tokens) = (model("mistral-sliding"), tokens(15, 9));
    let mut runtime = runtime(2, Profile::Exact);
    let mut recorder = Recorder::new(&[TapPoint::AttnPattern]);
    let mut states = [SequenceState::new(model.spec())];
    let input = [SequenceInput {
        tokens: &tokens,
        logits: WantedLogits::Absent,
    }];
    forward(
        &model,
        &mut runtime,
        &input,
        &mut states,
        Some(&mut recorder),
    )
    .unwrap();
    for position in 0..15usize {
        let pattern = recorder
            .find(
                TapPoint::AttnPattern,
                2,
                RowPlace {
                    sequence: 0,
                    position,
                },
            )
            .unwrap();
        for head in pattern.chunks(position + 1) {
            let visible = head.iter().filter(|w| **w > 0.0).count();
            assert_eq!(visible, (position + 1).min(9), "position {position}");
            assert!(
                head.iter().rev().take(9).all(|w| *w > 0.0),
                "position {position}: the newest are the visible ones"
            );
        }
    }
}

#[test]
fn a_failed_pass_leaves_the_sequences_as_they_were() {
    // Rows that only grow, and running states that a pass overwrites.
    for name in ["qwen3", "gemma3n", "kimi-linear", "qwen3-next"] {
        fails_and_resumes(name);
    }
}

fn fails_and_resumes(name: &str) {
    let (model, tokens) = (model(name), tokens(10, 10));
    let mut runtime = runtime(2, Profile::Exact);
    let mut states = [SequenceState::new(model.spec())];
    let run = |runtime: &mut Runtime,
               states: &mut [SequenceState],
               tokens: &[u32],
               tap: Option<&mut dyn Tap>| {
        forward(
            &model,
            runtime,
            &[SequenceInput {
                tokens,
                logits: WantedLogits::Last,
            }],
            states,
            tap,
        )
    };
    run(&mut runtime, &mut states, &tokens[..6], None).unwrap();
    let before = states[0].n_bytes();
    let mut failing = Edit {
        point: TapPoint::MlpPre,
        layer: 3,
        position: 7,
        columns: 0..1,
        outcome: Err("no".to_owned()),
    };
    let error = run(&mut runtime, &mut states, &tokens[6..], Some(&mut failing)).unwrap_err();
    assert_eq!(error.to_string(), "tap at layer 3, mlp.pre: no");
    runtime.interrupt().raise();
    let error = run(&mut runtime, &mut states, &tokens[6..], None).unwrap_err();
    assert!(matches!(error, EngineError::Interrupted));
    runtime.interrupt().clear();
    assert_eq!((states[0].n_positions(), states[0].n_bytes()), (6, before));
    let resumed = run(&mut runtime, &mut states, &tokens[6..], None).unwrap();
    let mut fresh = [SequenceState::new(model.spec())];
    let whole = run(&mut runtime, &mut fresh, &tokens, None).unwrap();
    assert!(
        bits(resumed.last(0).unwrap()) == bits(whole.last(0).unwrap()),
        "{name}"
    );
}

#[test]
fn a_running_state_goes_back_to_the_start_or_not_at_all() {
    let (model, tokens) = (model("qwen3-next"), tokens(9, 11));
    let mut runtime = runtime(2, Profile::Exact);
    let mut states = [SequenceState::new(model.spec())];
    let input = [SequenceInput {
        tokens: &tokens,
        logits: WantedLogits::Last,
    }];
    let first = forward(&model, &mut runtime, &input, &mut states, None).unwrap();
    let error = states[0].truncate(4).unwrap_err().to_string();
    assert_eq!(
        error,
        "layer 0 keeps a running state, which cannot go back to position 4"
    );
    assert_eq!(states[0].n_positions(), 9);
    states[0].truncate(0).unwrap();
    let again = forward(&model, &mut runtime, &input, &mut states, None).unwrap();
    assert!(bits(first.last(0).unwrap()) == bits(again.last(0).unwrap()));
}

#[test]
fn bad_input_is_refused_by_name() {
    let model = model("llama");
    let mut runtime = runtime(1, Profile::Exact);
    let mut refused = |tokens: &[u32], n_states: usize| {
        let mut states: Vec<SequenceState> = (0..n_states)
            .map(|_| SequenceState::new(model.spec()))
            .collect();
        let input = [SequenceInput {
            tokens,
            logits: WantedLogits::Last,
        }];
        forward(&model, &mut runtime, &input, &mut states, None)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(refused(&[], 1), "sequence 0 has no tokens to run");
    assert_eq!(
        refused(&[5, 300], 1),
        "token id 300 is outside the vocabulary of 300"
    );
    assert_eq!(refused(&[5], 2), "the batch has 1 sequences and 2 states");
    assert_eq!(
        refused(&[5; 257], 1),
        "the sequence would have 257 positions, the model takes 256"
    );
}

/// A copy of a fixture in which the first weight of a tensor is no number.
fn spoiled(name: &str, tensor: &str) -> Model {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(parity_fixture(name).join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let data = SafetensorsFile::open(&path).unwrap().data(tensor).unwrap();
    let at = bytes
        .windows(data.len())
        .position(|window| window == &data[..])
        .unwrap();
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    Model::load(&Checkpoint::open(dir.path()).unwrap()).unwrap()
}

#[test]
fn what_is_no_number_is_refused_where_it_appears() {
    let cases = [
        (
            "model.layers.2.mlp.down_proj.weight",
            "layer 2: the residual stream is not finite at position 0",
        ),
        (
            "model.layers.1.input_layernorm.weight",
            "layer 1: the residual stream is not finite at position 0",
        ),
        (
            "lm_head.weight",
            "the logit of token 0 is NaN at position 1",
        ),
    ];
    for (tensor, expected) in cases {
        let model = spoiled("llama", tensor);
        let mut states = [SequenceState::new(model.spec())];
        let input = [SequenceInput {
            tokens: &[7, 9],
            logits: WantedLogits::Last,
        }];
        let error = forward(
            &model,
            &mut runtime(2, Profile::Exact),
            &input,
            &mut states,
            None,
        )
        .unwrap_err();
        assert_eq!(error.to_string(), expected, "{tensor}");
        assert_eq!(states[0].n_positions(), 0);
    }
}

#[test]
fn a_sequence_keeps_to_the_arithmetic_it_began_in() {
    let model = model("llama");
    let ids = tokens(11, 1);
    let input = |range: std::ops::Range<usize>| SequenceInput {
        tokens: &ids[range],
        logits: WantedLogits::Last,
    };
    let mut bytes = Vec::new();
    for (profile, other) in [
        (Profile::Exact, Profile::Fast),
        (Profile::Fast, Profile::Exact),
    ] {
        let mut states = [SequenceState::new(model.spec())];
        forward(
            &model,
            &mut runtime(1, profile),
            &[input(0..9)],
            &mut states,
            None,
        )
        .unwrap();
        bytes.push(states[0].n_bytes());
        let error = forward(
            &model,
            &mut runtime(1, other),
            &[input(9..10)],
            &mut states,
            None,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            format!(
                "the sequence was begun in {} and cannot go on in {}",
                profile.name(),
                other.name()
            )
        );
        // Nothing has happened to it, and an empty one may begin anew.
        forward(
            &model,
            &mut runtime(1, profile),
            &[input(9..11)],
            &mut states,
            None,
        )
        .unwrap();
        states[0].truncate(0).unwrap();
        forward(
            &model,
            &mut runtime(1, other),
            &[input(0..9)],
            &mut states,
            None,
        )
        .unwrap();
    }
    assert_eq!(bytes[0], 2 * bytes[1], "keys and values in half the bytes");
}
