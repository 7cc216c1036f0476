//! What `bench` says of Atlas: the parts add up, the answers are checked, and what is not trusted is absent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;

use larql_db::bench::{BenchOptions, BenchReport, PhaseLedger, Refusal, bench};
use larql_db::{Database, DbError};
use larql_engine::{EngineError, Interrupt, OperatorClass, Profile, Runtime};
use larql_testkit::atlas;

const OPTIONS: BenchOptions = BenchOptions {
    prompt_tokens: 37,
    decode_tokens: 5,
    repeats: 2,
    batch: 3,
};

fn runtime(n_threads: usize, profile: Profile) -> Runtime {
    let n_threads = NonZeroUsize::new(n_threads).unwrap();
    Runtime::new(n_threads, profile, Interrupt::default())
}

fn report(n_threads: usize, profile: Profile, options: &BenchOptions) -> BenchReport {
    let db = Database::open(atlas()).unwrap();
    bench(&db, &mut runtime(n_threads, profile), options, &mut |_| {}).unwrap()
}

fn assert_whole(ledger: &PhaseLedger) {
    let (mut shares, mut wall_s) = (0.0, 0.0);
    for line in &ledger.classes {
        shares += line.share;
        wall_s += line.wall_s;
    }
    // A lost core between two clocks is a matter of microseconds, and the phase takes milliseconds.
    assert!((shares - 1.0).abs() < 0.02, "{shares}");
    assert!((wall_s - ledger.wall_s).abs() < 0.02 * ledger.wall_s);
    let classes: Vec<_> = ledger.classes.iter().map(|line| line.class).collect();
    assert_eq!(classes, OperatorClass::ALL);
}

#[test]
fn the_parts_of_a_phase_add_up_to_what_was_timed() {
    let report = report(2, Profile::Fast, &OPTIONS);
    let (prefill, decode) = (&report.ledger.prefill, &report.ledger.decode);
    assert_whole(prefill);
    assert_whole(decode);
    // The warm-up and the batch are not in it.
    assert_eq!((prefill.passes, decode.passes), (2, 10));
    let stored: u64 = decode.classes.iter().map(|line| line.stored_bytes).sum();
    assert_eq!(stored, 10 * report.weight_bytes_per_token);
    // The slowest and the fastest repeat enclose what the ledger says of all of them.
    let tok_s = 10.0 / decode.wall_s;
    let [slowest, fastest] = report.decode_tok_s_range;
    assert!(
        slowest * 0.98 <= tok_s && tok_s <= fastest * 1.02,
        "{tok_s}"
    );
}

#[test]
fn keys_and_values_are_read_at_the_length_they_have() {
    let of = |prompt_tokens| {
        let options = BenchOptions {
            prompt_tokens,
            decode_tokens: 3,
            repeats: 1,
            batch: 1,
        };
        report(1, Profile::Exact, &options).kv_bytes_per_token
    };
    let (short, long) = (of(10), of(20));
    // Three steps after 10 tokens see 11, 12 and 13 keys, so 12 on the average; 22 after 20.
    assert!(short > 0);
    assert_eq!(short * 22, long * 12);
}

#[test]
fn fractions_are_of_the_ceilings_or_absent_with_a_reason() {
    let report = report(2, Profile::Exact, &OPTIONS);
    let ceilings = report.ceilings;
    for ceiling in [
        ceilings.read_gb_s,
        ceilings.cache_gb_s,
        ceilings.integer_gmac_s,
        ceilings.float_gmac_s,
    ] {
        assert!(ceiling.before > 0.0 && ceiling.after > 0.0, "{ceiling:?}");
    }
    assert_eq!(report.read_gb_s, ceilings.read_gb_s.mean());
    // Atlas is so small that a cache may keep it.
    assert_eq!(report.roofline_refused, Some(Refusal::Cached));
    assert_eq!(report.roofline_fraction, None);
    assert_eq!(report.roofline_fraction_range, None);
    assert_eq!(
        report.multiply_fraction.is_none(),
        report.multiply_refused.is_some()
    );
    if let Some(fraction) = report.multiply_fraction {
        let classes = &report.ledger.prefill.classes;
        assert!(classes.iter().all(|line| line.integer_macs == 0));
        let macs: u64 = classes.iter().map(|line| line.float_macs).sum();
        let macs_per_token = macs as f64 / (OPTIONS.prompt_tokens * OPTIONS.repeats) as f64;
        let gmac_s = macs_per_token * report.prefill_tok_s / 1e9;
        let want = gmac_s / ceilings.float_gmac_s.mean();
        assert!((fraction / want - 1.0).abs() < 1e-12, "{fraction} {want}");
    }
}

#[test]
fn a_batch_is_beside_one_sequence_and_one_is_no_batch() {
    let with = report(2, Profile::Fast, &OPTIONS);
    let batch = with.batch.unwrap();
    assert_eq!(batch.sequences, 3);
    let [slowest, fastest] = batch.decode_tok_s_range;
    assert!(slowest > 0.0 && slowest <= batch.decode_tok_s && batch.decode_tok_s <= fastest);
    assert_eq!(batch.speedup.is_none(), batch.speedup_refused.is_some());
    if let (Some(speedup), Some([least, most])) = (batch.speedup, batch.speedup_range) {
        assert!(least <= speedup && speedup <= most);
        assert!(most <= fastest / with.decode_tok_s_range[0] * 1.000_001);
    }
    let alone = BenchOptions {
        batch: 1,
        ..OPTIONS
    };
    assert_eq!(report(1, Profile::Fast, &alone).batch, None);
}

#[test]
fn more_tokens_than_the_context_are_refused_before_anything_runs() {
    let db = Database::open(atlas()).unwrap();
    let n_ctx = db.spec().n_ctx as usize;
    for (prompt_tokens, decode_tokens, wanted) in [
        (n_ctx - 5, 6, n_ctx + 1),
        (usize::MAX, 1, usize::MAX),
        (1, usize::MAX, usize::MAX),
    ] {
        let options = BenchOptions {
            prompt_tokens,
            decode_tokens,
            ..OPTIONS
        };
        let mut runtime = runtime(1, Profile::Fast);
        let refused = bench(&db, &mut runtime, &options, &mut |_| panic!("it runs"));
        assert!(
            matches!(
                refused,
                Err(DbError::Engine(EngineError::ContextFull { wanted: got, .. })) if got == wanted
            ),
            "{refused:?}"
        );
    }
}

#[test]
fn an_interrupted_bench_keeps_no_ledger() {
    let db = Database::open(atlas()).unwrap();
    let mut runtime = runtime(1, Profile::Exact);
    let interrupt = runtime.interrupt().clone();
    let result = bench(&db, &mut runtime, &OPTIONS, &mut |_| interrupt.raise());
    assert!(matches!(
        result,
        Err(DbError::Engine(larql_engine::EngineError::Interrupted))
    ));
    assert!(runtime.take_ledger().is_none());
}
