//! Scores of Atlas against sums worked out here from the logits of whole windows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::result_large_err,
    reason = "an error of a test is printed once"
)]

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use larql_db::rows::counted;
use larql_db::score::{
    Arm, ScoreError, ScoreOptions, ScoreReport, ScoreText, kl_divergence, score,
};
use larql_db::{Database, DbError};
use larql_engine::{
    Interrupt, Profile, Runtime, SequenceInput, SequenceState, WantedLogits, forward,
};
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::Quantization;
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_testkit::{atlas, parity_fixture};
use larql_vindex::{ExportSource, export_gguf};
use serde_json::Value;
use tempfile::TempDir;

/// Facts of the model, words it does not know, and characters of two, three and four bytes.
const TEXT: &str = "The capital of France is Paris. The capital of Japan is Tokyo. Nobody wrote \
                    \u{e9}t\u{e9} in \u{20ac} or \u{1f600} here.\nGold has the symbol Au.";

const OPTIONS: ScoreOptions = ScoreOptions {
    window: 13,
    windows: None,
    rows_per_pass: 32,
};

fn runtime(profile: Profile) -> Runtime {
    Runtime::new(NonZeroUsize::new(2).unwrap(), profile, Interrupt::default())
}

fn text(text: &str) -> ScoreText {
    ScoreText::from_bytes("text", text.as_bytes(), None).unwrap()
}

/// The score of `TEXT`, or of another one, by the exact profile.
fn alone(db: &Database, of: &ScoreText, options: &ScoreOptions) -> Result<ScoreReport, DbError> {
    let mut runtime = runtime(Profile::Exact);
    let run = Arm {
        db,
        runtime: &mut runtime,
    };
    score(run, None, of, options, &mut |_| {})
}

/// `db` by `profile` beside `reference` by `reference_profile`, on `TEXT`.
fn beside(
    db: &Database,
    profile: Profile,
    reference: &Database,
    reference_profile: Profile,
) -> Result<ScoreReport, DbError> {
    let (mut of_run, mut of_reference) = (runtime(profile), runtime(reference_profile));
    let run = Arm {
        db,
        runtime: &mut of_run,
    };
    let reference = Arm {
        db: reference,
        runtime: &mut of_reference,
    };
    score(run, Some(reference), &text(TEXT), &OPTIONS, &mut |_| {})
}

fn refused(result: Result<ScoreReport, DbError>) -> String {
    match result {
        Err(DbError::Score(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Softmaxes of every position of every window but the last of each, with the token that came next.
fn distributions(
    db: &Database,
    profile: Profile,
    window: usize,
    prefix: &[u32],
) -> Vec<(Vec<f64>, u32)> {
    let (model, mut runtime) = (db.model().unwrap(), runtime(profile));
    let tokenizer = db.tokenizer().unwrap();
    let ids = tokenizer
        .encode(TEXT, EncodeSpecial::Plain, Bos::Never)
        .unwrap();
    let mut all = Vec::new();
    for window in ids.chunks(window) {
        let tokens = [prefix, window].concat();
        let input = SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::All,
        };
        let mut states = [SequenceState::new(model.spec())];
        let logits = forward(model, &mut runtime, &[input], &mut states, None).unwrap();
        for ((_, row), next) in logits.rows().zip(&tokens[1..]) {
            let exps: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
            let sum: f64 = exps.iter().sum();
            all.push((exps.iter().map(|x| x / sum).collect(), *next));
        }
    }
    all
}

fn bits(distributions: &[(Vec<f64>, u32)]) -> f64 {
    distributions
        .iter()
        .map(|(probs, next)| -probs[*next as usize].log2())
        .sum()
}

/// Atlas with other tokenizer files.
fn retold(name: &str, change: impl FnOnce(&mut Value)) -> (TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.path().join(name);
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(&path, json.to_string()).unwrap();
    let db = Database::open(dir.path()).unwrap();
    (dir, db)
}

/// Atlas as a GGUF file, in smaller types if a mix is named.
fn copied(mix: Option<&str>) -> (TempDir, Database) {
    let source = Database::open(atlas()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.gguf");
    let export = ExportSource {
        checkpoint: source.checkpoint().unwrap(),
        vindex: None,
    };
    let quantization = mix.map(|mix| Quantization {
        mix: Mix::parse(mix).unwrap(),
        requantize: false,
    });
    let go_on = &mut |_| ControlFlow::Continue(());
    export_gguf(export, &path, quantization, NonZeroUsize::MIN, go_on).unwrap();
    let db = Database::open(&path).unwrap();
    (dir, db)
}

fn without_bos() -> (TempDir, Database) {
    retold("tokenizer.json", |tokenizer| {
        tokenizer["post_processor"] = Value::Null;
    })
}

#[test]
fn every_token_of_every_window_counts_once() {
    let db = Database::open(atlas()).unwrap();
    let report = alone(&db, &text(TEXT), &OPTIONS).unwrap();
    let expected = distributions(&db, Profile::Exact, 13, &[2]);
    assert!(
        expected.len() > 3 * 13 && !expected.len().is_multiple_of(13),
        "{}",
        expected.len()
    );
    assert_eq!((report.tokens, report.context_tokens), (expected.len(), 0));
    assert_eq!(report.windows, expected.len().div_ceil(13));
    assert_eq!(report.prefix_ids, [2]);
    let bits = bits(&expected);
    assert!(
        (report.bits - bits).abs() < 1e-9 * bits,
        "{} {bits}",
        report.bits
    );
    let (n_bytes, n_chars) = (TEXT.len() as u64, TEXT.chars().count() as u64);
    assert_eq!(
        (report.bytes, report.characters),
        (Some(n_bytes), Some(n_chars))
    );
    assert!(n_bytes > n_chars);
    for (got, n) in [
        (report.bits_per_token, expected.len() as u64),
        (report.bits_per_byte.unwrap(), n_bytes),
        (report.bits_per_char.unwrap(), n_chars),
    ] {
        assert!((got - bits / n as f64).abs() < 1e-9, "{got} {n}");
    }
}

#[test]
fn without_a_beginning_of_sequence_the_first_token_of_a_window_is_context() {
    let (_dir, db) = without_bos();
    let report = alone(&db, &text(TEXT), &OPTIONS).unwrap();
    let expected = distributions(&db, Profile::Exact, 13, &[]);
    assert_eq!(
        (report.tokens, report.prefix_ids.len()),
        (expected.len(), 0)
    );
    assert_eq!(report.context_tokens, report.windows);
    let bits = bits(&expected);
    assert!(
        (report.bits - bits).abs() < 1e-9 * bits,
        "{} {bits}",
        report.bits
    );
    // The first tokens of the windows are not among the bytes either.
    let tokenizer = db.tokenizer().unwrap();
    let ids = tokenizer
        .encode(TEXT, EncodeSpecial::Plain, Bos::Never)
        .unwrap();
    let context: usize = ids
        .chunks(13)
        .map(|ids| tokenizer.token_bytes(ids[0]).len())
        .sum();
    assert!(context > report.windows);
    assert_eq!(report.bytes, Some((TEXT.len() - context) as u64));
    assert_eq!(
        refused(alone(&db, &text("a"), &OPTIONS)),
        format!(
            "the text is one token, and {} has no beginning of sequence to predict it from",
            db.name()
        )
    );
}

#[test]
fn positions_per_pass_and_threads_change_no_bit() {
    // Where weights are stored as floats, `fast` is `exact`.
    let (_dir, db) = copied(Some("q4_0"));
    let expected = beside(&db, Profile::Fast, &db, Profile::Exact).unwrap();
    assert!(expected.against.as_ref().unwrap().kl_mean > 0.0);
    for (rows_per_pass, n_threads) in [(1, 2), (5, 1), (13, 3), (1000, 2)] {
        let runtime = |profile| {
            let n_threads = NonZeroUsize::new(n_threads).unwrap();
            Runtime::new(n_threads, profile, Interrupt::default())
        };
        let (mut fast, mut exact) = (runtime(Profile::Fast), runtime(Profile::Exact));
        let run = Arm {
            db: &db,
            runtime: &mut fast,
        };
        let reference = Arm {
            db: &db,
            runtime: &mut exact,
        };
        let options = ScoreOptions {
            rows_per_pass,
            ..OPTIONS
        };
        let got = score(run, Some(reference), &text(TEXT), &options, &mut |_| {}).unwrap();
        assert_eq!(got, expected, "{rows_per_pass} {n_threads}");
    }
}

#[test]
fn the_divergence_is_of_the_run_from_the_reference() {
    // Where weights are stored as floats, `fast` is `exact`.
    let (_dir, db) = copied(Some("q4_0"));
    let report = beside(&db, Profile::Fast, &db, Profile::Exact).unwrap();
    let p = distributions(&db, Profile::Exact, 13, &[2]);
    let q = distributions(&db, Profile::Fast, 13, &[2]);
    let mut kls: Vec<f64> = p
        .iter()
        .zip(&q)
        .map(|((p, _), (q, _))| p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum())
        .collect();
    let top = |probs: &[f64]| (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
    let flips = p
        .iter()
        .zip(&q)
        .filter(|(p, q)| top(&p.0) != top(&q.0))
        .count();
    let n = kls.len();
    let mean = kls.iter().sum::<f64>() / n as f64;
    kls.sort_by(f64::total_cmp);
    let got = report.against.unwrap();
    for (name, got, want) in [
        ("mean", got.kl_mean, mean),
        ("p50", got.kl_p50, kls[n.div_ceil(2) - 1]),
        ("p99", got.kl_p99, kls[(99 * n).div_ceil(100) - 1]),
        ("max", got.kl_max, kls[n - 1]),
        ("bits", got.bits_per_token, bits(&p) / n as f64),
        (
            "agreement",
            got.top1_agreement,
            1.0 - flips as f64 / n as f64,
        ),
    ] {
        assert!(
            want > 0.0 && (got - want).abs() < 1e-9,
            "{name}: {got} {want}"
        );
    }
    assert_eq!((got.flips, got.profile), (flips, "exact"));
    assert!((report.bits - bits(&q)).abs() < 1e-9 * bits(&q));
    let other_way = beside(&db, Profile::Exact, &db, Profile::Fast).unwrap();
    assert!((other_way.against.unwrap().kl_mean - got.kl_mean).abs() > 1e-9);
}

#[test]
fn a_copy_is_no_distance_away_and_a_quantized_copy_is() {
    let db = Database::open(atlas()).unwrap();
    let (_dir, same) = copied(None);
    let against = |other: &Database| {
        let report = beside(other, Profile::Exact, &db, Profile::Exact).unwrap();
        (report.bits_per_token, report.against.unwrap())
    };
    let (bits, got) = against(&same);
    assert_eq!((got.kl_max, got.flips, got.top1_agreement), (0.0, 0, 1.0));
    assert_eq!(bits, got.bits_per_token);
    let mut last = 0.0;
    for mix in ["q8_0", "q4_0"] {
        let (_dir, smaller) = copied(Some(mix));
        let (bits, got) = against(&smaller);
        assert!(
            got.kl_mean > 2.0 * last && bits != got.bits_per_token,
            "{mix}: {got:?}"
        );
        assert!(
            got.kl_p50 < got.kl_p99 && got.kl_p99 <= got.kl_max,
            "{mix}: {got:?}"
        );
        last = got.kl_mean;
    }
}

#[test]
fn what_would_compare_nothing_or_wrongly_is_refused_by_name() {
    let db = Database::open(atlas()).unwrap();
    assert_eq!(
        refused(beside(&db, Profile::Fast, &db, Profile::Fast)),
        "the run is compared with itself: the same weights with profile fast on both sides"
    );
    let narrower = Database::open(&parity_fixture("gemma3")).unwrap();
    let message = refused(beside(&db, Profile::Exact, &narrower, Profile::Exact));
    let want = format!(
        "{} predicts 2583 tokens and gemma3 {}: distributions over different vocabularies cannot be compared",
        db.name(),
        narrower.spec().d_vocab
    );
    assert_eq!(message, want);
    // Fewer merges: the same vocabulary cut otherwise.
    let (_dir, coarse) = retold("tokenizer.json", |json| {
        json["model"]["merges"]
            .as_array_mut()
            .unwrap()
            .truncate(300);
    });
    let message = refused(beside(&db, Profile::Exact, &coarse, Profile::Exact));
    assert!(
        message.starts_with(&format!(
            "the tokenizers of {} and {} differ: token ",
            db.name(),
            coarse.name()
        )) && message.contains(" of the text is "),
        "{message}"
    );
    let (_dir, bare) = without_bos();
    let message = refused(beside(&db, Profile::Exact, &bare, Profile::Exact));
    assert!(
        message.ends_with("differ: token 0 of the beginning of sequence is 2 for the first and absent for the second"),
        "{message}"
    );
}

#[test]
fn windows_their_length_and_the_range_each_act() {
    let db = Database::open(atlas()).unwrap();
    let whole = alone(&db, &text(TEXT), &OPTIONS).unwrap();
    let first_two = ScoreOptions {
        windows: NonZeroUsize::new(2),
        ..OPTIONS
    };
    let two = alone(&db, &text(TEXT), &first_two).unwrap();
    let per_token = distributions(&db, Profile::Exact, 13, &[2]);
    let want = bits(&per_token[..26]);
    assert_eq!((two.windows, two.tokens), (2, 26));
    assert!((two.bits - want).abs() < 1e-9 * want);
    assert!(two.bytes < whole.bytes && two.ids_sha256 != whole.ids_sha256);
    let more_than_there_are = ScoreOptions {
        windows: NonZeroUsize::new(1000),
        ..OPTIONS
    };
    assert_eq!(
        alone(&db, &text(TEXT), &more_than_there_are).unwrap(),
        whole
    );

    let longer = ScoreOptions {
        window: 29,
        ..OPTIONS
    };
    let with_more_context = alone(&db, &text(TEXT), &longer).unwrap();
    assert_eq!(with_more_context.tokens, whole.tokens);
    assert!(with_more_context.bits < whole.bits, "context must help");

    let part = ScoreText::from_bytes("text", TEXT.as_bytes(), Some(31..62)).unwrap();
    let of_part = alone(&db, &part, &OPTIONS).unwrap();
    let by_itself = alone(&db, &text(&TEXT[31..62]), &OPTIONS).unwrap();
    assert_eq!(of_part.byte_range, [31, 62]);
    assert_eq!((of_part.bits, of_part.bytes), (by_itself.bits, Some(31)));
    assert_eq!(of_part.file_sha256, whole.file_sha256);
    assert_ne!(by_itself.file_sha256, whole.file_sha256);
}

#[test]
fn a_window_must_predict_something_and_fit_the_context() {
    let db = Database::open(atlas()).unwrap();
    let of = |window| {
        let options = ScoreOptions { window, ..OPTIONS };
        alone(&db, &text(TEXT), &options)
    };
    for window in [2, 511] {
        assert_eq!(of(window).unwrap().window, window);
    }
    for window in [0, 1, 512, usize::MAX] {
        let tokens = counted(window, "token");
        let want = format!(
            "a window of {tokens}, expected 2 to 511: {} takes 512 positions, 1 of them for its beginning of sequence",
            db.name()
        );
        assert_eq!(refused(of(window)), want);
    }
    // Without a beginning of sequence the text has all positions.
    let (_dir, db) = without_bos();
    let long = text(&TEXT.repeat(40));
    let of = |window| {
        let options = ScoreOptions {
            window,
            windows: NonZeroUsize::new(1),
            ..OPTIONS
        };
        alone(&db, &long, &options)
    };
    assert_eq!(of(512).unwrap().tokens, 511);
    let want = format!(
        "a window of 513 tokens, expected 2 to 512: {} takes 512 positions",
        db.name()
    );
    assert_eq!(refused(of(513)), want);
    let none = ScoreOptions {
        rows_per_pass: 0,
        ..OPTIONS
    };
    assert_eq!(
        refused(alone(&db, &text(TEXT), &none)),
        "0 positions per pass, expected 1 or more"
    );
}

#[test]
fn progress_counts_windows_and_an_interrupt_ends_them() {
    let db = Database::open(atlas()).unwrap();
    let mut told = Vec::new();
    let mut exact = runtime(Profile::Exact);
    let run = Arm {
        db: &db,
        runtime: &mut exact,
    };
    let report = score(run, None, &text(TEXT), &OPTIONS, &mut |progress| {
        told.push((progress.done, progress.total));
    })
    .unwrap();
    let total = report.windows as u64;
    assert_eq!(
        told,
        (0..=total).map(|done| (done, total)).collect::<Vec<_>>()
    );

    let flag = exact.interrupt().clone();
    let run = Arm {
        db: &db,
        runtime: &mut exact,
    };
    let mut n_told = 0;
    let ended = score(run, None, &text(TEXT), &OPTIONS, &mut |_| {
        n_told += 1;
        if n_told == 2 {
            flag.raise();
        }
    });
    assert!(matches!(
        ended,
        Err(DbError::Engine(larql_engine::EngineError::Interrupted))
    ));
    assert_eq!(n_told, 2);
}

#[test]
fn a_file_is_read_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    fs::write(&path, TEXT).unwrap();
    let read = ScoreText::open(&path, Some(31..62)).unwrap();
    assert_eq!(read.as_str(), &TEXT[31..62]);
    let missing = dir.path().join("nothing");
    let error = ScoreText::open(&missing, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: cannot be read", missing.display())
    );
    assert!(matches!(error, ScoreError::Read { .. }));
}

#[test]
fn a_divergence_between_vocabularies_is_a_slip_of_the_program() {
    let slip = std::panic::catch_unwind(|| kl_divergence(&[0.0; 3], &[0.0; 4])).unwrap_err();
    let message = slip.downcast_ref::<String>().map_or("", String::as_str);
    assert!(
        message.contains("distributions over one vocabulary"),
        "{message}"
    );
}
