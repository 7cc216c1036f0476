//! Speculative decoding gives the tokens of plain decoding: whatever drafts, however long, at any temperature and seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use larql_db::Database;
use larql_db::generate::{FinishReason, GenerateOptions, Generated, generate};
use larql_db::speculate::{DRAFT_TOKENS_MAX, DraftLength, Speculator};
use larql_engine::{Interrupt, Profile, Runtime, Sampler, SamplingOptions, SequenceState};
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_testkit::{atlas, parity_fixture};
use tempfile::TempDir;

const ADAPTIVE: DraftLength = DraftLength::Adaptive;

fn runtime() -> Runtime {
    let n_threads = NonZeroUsize::new(1).unwrap();
    Runtime::new(n_threads, Profile::Exact, Interrupt::default())
}

fn options(max_tokens: usize, temperature: f32, seed: u64) -> GenerateOptions {
    let sampling = SamplingOptions {
        temperature,
        top_k: Some(40),
        top_p: 0.95,
        seed,
        ..SamplingOptions::GREEDY
    };
    GenerateOptions {
        max_tokens,
        sampling,
        stop: Vec::new(),
    }
}

/// A fixture with the vocabulary of Atlas, of which it has the first ids.
fn fixture(name: &str) -> (TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    let copy = |from: &Path, file: &str| fs::copy(from.join(file), dir.path().join(file)).unwrap();
    copy(&parity_fixture(name), "config.json");
    copy(&parity_fixture(name), "model.safetensors");
    copy(atlas(), "tokenizer.json");
    let db = Database::open(dir.path()).unwrap();
    (dir, db)
}

/// The same with other low bits in its weights, which thinks alike and not the same.
fn noisy(name: &str) -> (TempDir, Database) {
    let (dir, _) = fixture(name);
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let weights = &mut bytes[8 + usize::try_from(n_header).unwrap()..];
    for (i, bf16) in weights.chunks_exact_mut(2).enumerate() {
        bf16[0] ^= ((i as u64 * 2_654_435_761) >> 16) as u8 & 0x1f;
    }
    fs::write(&path, bytes).unwrap();
    let db = Database::open(dir.path()).unwrap();
    (dir, db)
}

/// Ids with a repetition, so that there is something to look up.
fn prompt() -> Vec<u32> {
    let piece: Vec<u32> = (0..9u32).map(|i| 5 + (i * 53) % 280).collect();
    [&piece[..], &[7, 11], &piece[..], &[7]].concat()
}

/// What `speculator` leads to, and the state afterwards.
fn continued(
    db: &Database,
    prompt: &[u32],
    options: &GenerateOptions,
    speculator: &mut Speculator<'_>,
) -> (Generated, SequenceState) {
    let mut state = SequenceState::new(db.spec());
    let on_text = &mut |_: &str| {};
    let made = generate(
        db,
        &mut runtime(),
        &mut state,
        prompt,
        options,
        speculator,
        on_text,
    );
    (made.unwrap(), state)
}

fn plain(db: &Database, prompt: &[u32], options: &GenerateOptions) -> (Generated, SequenceState) {
    continued(db, prompt, options, &mut Speculator::none())
}

/// That a continuation is the plain one, and that its state goes on as the plain one does.
fn assert_plain(
    db: &Database,
    prompt: &[u32],
    options: &GenerateOptions,
    speculator: &mut Speculator<'_>,
    what: &str,
) -> Generated {
    let (expected, plain_state) = plain(db, prompt, options);
    let (made, mut state) = continued(db, prompt, options, speculator);
    assert_eq!(
        (&made.tokens, &made.text, made.finish_reason),
        (&expected.tokens, &expected.text, expected.finish_reason),
        "{what}"
    );
    assert!(state.n_positions() <= plain_state.n_positions(), "{what}");
    let mut all = [prompt, &made.tokens].concat();
    all.truncate(db.spec().n_ctx as usize);
    let rest = &all[state.n_positions()..];
    let mut fresh = SequenceState::new(db.spec());
    let next = |state: &mut SequenceState, tokens: &[u32]| {
        larql_db::generate::prefill(db, &mut runtime(), state, tokens).unwrap()
    };
    if !rest.is_empty() {
        assert_eq!(next(&mut state, rest), next(&mut fresh, &all), "{what}");
    }
    made
}

#[test]
fn lookup_gives_the_plain_tokens_at_every_length_temperature_and_kind_of_layer() {
    for name in ["gemma3", "qwen3-next", "kimi-linear", "deepseek-v2", "gpt2"] {
        let (_dir, db) = fixture(name);
        for temperature in [0.0, 0.3, 1.2] {
            for k in [1, 3, DRAFT_TOKENS_MAX] {
                let what = format!("{name} at {temperature}, drafts of {k}");
                let mut speculator = Speculator::lookup(DraftLength::Fixed(k));
                let options = options(60, temperature, 5 + k as u64);
                let made = assert_plain(&db, &prompt(), &options, &mut speculator, &what);
                let report = made.speculation.unwrap();
                // Without a running state these repeat themselves when they are cold.
                if temperature == 0.0 && ["gemma3", "deepseek-v2", "gpt2"].contains(&name) {
                    assert!(report.accepted > 0, "{what}: {report:?}");
                }
            }
        }
    }
}

#[test]
fn a_draft_model_gives_the_plain_tokens() {
    // Other weights (accepts little), the same weights (accepts all), running states on either side.
    for (target, draft) in [
        ("llama", "qwen3-next"),
        ("qwen3-next", "llama"),
        ("kimi-linear", "kimi-linear"),
        ("gemma3", "gemma3"),
    ] {
        let ((_a, target_db), (_b, draft_db)) = (fixture(target), fixture(draft));
        for (temperature, k) in [(0.0, 1), (0.0, 5), (0.8, 2), (1.5, DRAFT_TOKENS_MAX)] {
            let what = format!("{draft} for {target} at {temperature}, drafts of {k}");
            let length = DraftLength::Fixed(k);
            let mut speculator = Speculator::draft_model(&target_db, &draft_db, length).unwrap();
            let options = options(27, temperature, 3);
            let made = assert_plain(&target_db, &prompt(), &options, &mut speculator, &what);
            let report = made.speculation.unwrap();
            if target == draft {
                // A copy of the model draws what the model draws, so a draft fails only where the text ends.
                assert!(
                    report.accepted + k as u64 >= report.drafted,
                    "{what}: {report:?}"
                );
                let n_passes = (made.tokens.len() as u64).div_ceil(k as u64 + 1);
                assert!(report.passes <= n_passes, "{what}: {report:?}");
            }
        }
    }
}

#[test]
fn drafts_that_are_partly_right_are_kept_as_far_as_they_are() {
    for name in ["gemma3", "qwen3-next", "kimi-linear"] {
        let ((_a, target_db), (_b, draft_db)) = (fixture(name), noisy(name));
        for (temperature, k) in [(0.0, 4), (0.7, DRAFT_TOKENS_MAX)] {
            let what = format!("{name} at {temperature}, drafts of {k}");
            let length = DraftLength::Fixed(k);
            let mut speculator = Speculator::draft_model(&target_db, &draft_db, length).unwrap();
            let options = options(60, temperature, 8);
            let made = assert_plain(&target_db, &prompt(), &options, &mut speculator, &what);
            let report = made.speculation.unwrap();
            assert!(
                report.accepted >= 3 && report.accepted + 3 <= report.drafted,
                "{what}: {report:?}"
            );
        }
    }
}

#[test]
fn a_draft_model_follows_from_one_continuation_to_the_next() {
    let ((_a, db), (_b, draft_db)) = (fixture("kimi-linear"), fixture("kimi-linear"));
    let length = DraftLength::Fixed(4);
    let mut speculator = Speculator::draft_model(&db, &draft_db, length).unwrap();
    let options = options(9, 0.0, 0);
    let run = |state: &mut SequenceState, prompt: &[u32], speculator: &mut Speculator<'_>| {
        let mut runtime = runtime();
        generate(
            &db,
            &mut runtime,
            state,
            prompt,
            &options,
            speculator,
            &mut |_| {},
        )
        .unwrap()
    };
    let (mut state, mut plain_state) =
        (SequenceState::new(db.spec()), SequenceState::new(db.spec()));
    let mut all = Vec::new();
    for turn in 0..3u32 {
        all.extend(prompt().iter().map(|id| id + turn));
        let rest = all[state.n_positions()..].to_vec();
        let made = run(&mut state, &rest, &mut speculator);
        let rest = all[plain_state.n_positions()..].to_vec();
        let expected = run(&mut plain_state, &rest, &mut Speculator::none());
        assert_eq!(made.tokens, expected.tokens, "turn {turn}");
        let report = made.speculation.unwrap();
        assert!(report.accepted >= 6, "turn {turn}: {report:?}");
        all.extend(&made.tokens);
    }
}

#[test]
fn limits_and_stop_texts_end_where_they_end_without_drafts() {
    let (_dir, db) = fixture("gemma3");
    let (whole, _) = plain(&db, &prompt(), &options(24, 0.0, 0));
    for max_tokens in [0, 1, 2, 7, 24] {
        let what = format!("{max_tokens} tokens");
        let mut speculator = Speculator::lookup(DraftLength::Fixed(DRAFT_TOKENS_MAX));
        let options = options(max_tokens, 0.0, 0);
        let made = assert_plain(&db, &prompt(), &options, &mut speculator, &what);
        assert_eq!(made.finish_reason, FinishReason::Length);
        assert_eq!(made.tokens, whole.tokens[..max_tokens]);
    }
    let stop = GenerateOptions {
        stop: vec![whole.text.chars().skip(9).take(3).collect()],
        ..options(24, 0.0, 0)
    };
    let mut speculator = Speculator::lookup(DraftLength::Fixed(DRAFT_TOKENS_MAX));
    let made = assert_plain(&db, &prompt(), &stop, &mut speculator, "stop text");
    assert_eq!(made.finish_reason, FinishReason::StopText);
    // The context takes 256 positions: the drafts reach its end before the tokens do.
    let long: Vec<u32> = (0..241u32).map(|i| 5 + i % 6).collect();
    for k in [2, DRAFT_TOKENS_MAX] {
        let mut speculator = Speculator::lookup(DraftLength::Fixed(k));
        let made = assert_plain(&db, &long, &options(40, 0.0, 0), &mut speculator, "context");
        assert_eq!(made.finish_reason, FinishReason::Context);
        assert_eq!(made.tokens.len(), 16);
    }
}

#[test]
fn the_model_ends_its_text_in_the_middle_of_a_draft() {
    let db = Database::open(atlas()).unwrap();
    let text = "The capital of France is Paris.\nThe capital of France is";
    let prompt = db.tokenizer().unwrap();
    let prompt = prompt
        .encode(text, EncodeSpecial::Plain, Bos::Model)
        .unwrap();
    let mut speculator = Speculator::lookup(DraftLength::Fixed(6));
    let made = assert_plain(&db, &prompt, &options(12, 0.0, 0), &mut speculator, "end");
    assert_eq!(made.text, " Paris.");
    assert_eq!(made.finish_reason, FinishReason::Stop);
    let report = made.speculation.unwrap();
    assert!(report.drafted > report.accepted, "{report:?}");
}

#[test]
fn drafts_that_are_never_right_are_turned_off() {
    // Another model's draft, at a temperature at which the two hardly ever agree.
    let ((_a, db), (_b, draft_db)) = (fixture("llama"), fixture("gpt2"));
    let mut speculator = Speculator::draft_model(&db, &draft_db, ADAPTIVE).unwrap();
    let mut hot = options(60, 5.0, 1);
    hot.sampling.top_k = None;
    hot.sampling.top_p = 1.0;
    let made = assert_plain(&db, &prompt(), &hot, &mut speculator, "hot");
    let report = made.speculation.unwrap();
    assert!(report.times_turned_off > 0, "{report:?}");
    assert_eq!(report.source, "draft");
    assert_eq!(
        plain(&db, &prompt(), &hot).0.speculation,
        None,
        "plain decoding has nothing to report"
    );
}

/// Over many seeds a fixed draft is kept as often as `p` says, and what takes its place is `p`
/// without it, renormalized, which is the rule of speculative sampling for a draft that is certain of itself.
#[test]
fn a_draft_is_kept_with_its_probability_and_replaced_by_the_rest() {
    let logits = [0.4f32, 1.9, -0.7, 1.1, 0.0];
    let n = 40_000u32;
    let mut counts = [0u32; 5];
    for seed in 0..n {
        let sampling = SamplingOptions {
            temperature: 0.9,
            seed: u64::from(seed),
            ..SamplingOptions::GREEDY
        };
        let mut sampler = Sampler::new(sampling).unwrap();
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    let weight = |i: usize| (f64::from(logits[i]) / 0.9).exp();
    let total: f64 = (0..5).map(weight).sum();
    let draft = 3usize;
    let near = |got: u32, of: u32, want: f64, what: &str| {
        let (got, of) = (f64::from(got), f64::from(of));
        let sigma = (want * (1.0 - want) / of).sqrt();
        assert!(
            (got / of - want).abs() <= 5.0 * sigma,
            "{what}: {got} of {of}, {want}"
        );
    };
    let p_draft = weight(draft) / total;
    near(counts[draft], n, p_draft, "kept");
    let n_replaced = n - counts[draft];
    for i in (0..5).filter(|i| *i != draft) {
        let residual = weight(i) / total / (1.0 - p_draft);
        near(counts[i], n_replaced, residual, "replaced");
    }
}

#[test]
fn other_vocabularies_are_refused_by_the_first_token_that_differs() {
    let db = Database::open(atlas()).unwrap();
    let tampered = |change: &dyn Fn(String) -> String| {
        let (dir, _) = fixture("llama");
        let path = dir.path().join("tokenizer.json");
        let text = change(fs::read_to_string(&path).unwrap());
        fs::write(&path, text).unwrap();
        let draft = Database::open(dir.path()).unwrap();
        let refused = Speculator::draft_model(&db, &draft, ADAPTIVE).unwrap_err();
        refused
            .to_string()
            .replace(&dir.path().display().to_string(), "DRAFT")
    };
    let (first, second) = {
        let tokenizer = db.tokenizer().unwrap();
        let piece = |id| tokenizer.token_piece(id).unwrap().to_owned();
        (piece(200), piece(201))
    };
    let swapped = tampered(&|text| {
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["model"]["vocab"][&first] = 201.into();
        json["model"]["vocab"][&second] = 200.into();
        json.to_string()
    });
    let target = atlas().display();
    assert_eq!(
        swapped,
        format!(
            "DRAFT cannot draft for {target}: the tokenizers differ, token 200 is `{second}` in the first and `{first}` in \
             the second"
        )
    );
}

#[test]
fn the_first_token_is_told_of_while_its_text_is_held_back() {
    let db = Database::open(atlas()).unwrap();
    let prompt = db.tokenizer().unwrap();
    let prompt = prompt
        .encode("The capital of", EncodeSpecial::Plain, Bos::Model)
        .unwrap();
    let texts = |stop: Vec<String>| {
        let mut texts = Vec::new();
        let options = GenerateOptions {
            stop,
            ..options(4, 0.0, 0)
        };
        let made = generate(
            &db,
            &mut runtime(),
            &mut SequenceState::new(db.spec()),
            &prompt,
            &options,
            &mut Speculator::none(),
            &mut |text: &str| texts.push(text.to_owned()),
        );
        (made.unwrap().text, texts)
    };
    let (text, as_it_comes) = texts(Vec::new());
    assert!(as_it_comes.len() > 2, "{as_it_comes:?}");
    // Nothing is final before the end, as all of it may be the beginning of the stop text.
    let (_, held) = texts(vec![format!("{text} and no more")]);
    assert_eq!(held, [String::new(), text]);
}
