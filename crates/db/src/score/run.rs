//! Windows through the forward pass, and what they come to.

use std::num::NonZeroUsize;

use larql_engine::{
    EngineError, Logits, Model, Runtime, SequenceInput, SequenceState, WantedLogits, forward,
};
use larql_models::tokenizer::{Bos, EncodeSpecial};

use super::error::ScoreError;
use super::extent::extents;
use super::position::{NotFinite, Scored, Side, scored};
use super::report::{ScoreReport, Tally};
use super::text::{ScoreText, hex_sha256};
use crate::database::Database;
use crate::error::DbError;
use crate::progress::{OnProgress, Progress};

/// Tokens of a window unless another number is wanted: with one for the beginning of sequence, 512 positions.
pub const WINDOW_TOKENS: usize = 511;
/// A shorter window would have a token without context.
pub(super) const WINDOW_TOKENS_MIN: usize = 2;
/// Positions whose logits are in memory at a time: 32 MB per run at the largest vocabularies in use.
pub const ROWS_PER_PASS: usize = 32;

/// How to score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreOptions {
    /// Tokens of a window.
    pub window: usize,
    /// Windows to run, from the first; all of them if absent.
    pub windows: Option<NonZeroUsize>,
    /// Positions per pass; decides memory and speed, never a result.
    pub rows_per_pass: usize,
}

/// A model and what runs it.
#[derive(Debug)]
pub struct Arm<'a> {
    /// The model.
    pub db: &'a Database,
    /// Threads and arithmetic.
    pub runtime: &'a mut Runtime,
}

/// One side of a score, ready to run.
struct Ready<'a> {
    name: String,
    model: &'a Model,
    runtime: &'a mut Runtime,
}

/// The ids of the text, and how they are cut.
struct Cut {
    prefix: Vec<u32>,
    ids: Vec<u32>,
    n_windows: usize,
}

/// Scores `text` by `run`, beside `reference` if there is one.
///
/// # Errors
/// If an option is out of range, the two sides are the same or have different tokenizers or vocabularies, the text cannot be
/// encoded, or the run fails or is interrupted.
pub fn score(
    run: Arm<'_>,
    reference: Option<Arm<'_>>,
    text: &ScoreText,
    options: &ScoreOptions,
    on_progress: OnProgress<'_>,
) -> Result<ScoreReport, DbError> {
    let cut = cut_text(run.db, text, options)?;
    if let Some(reference) = &reference {
        comparable(&run, reference, text, &cut, options)?;
    }
    let extents = extents(run.db.tokenizer()?, &cut.ids, text.as_str());
    let mut run = ready(run)?;
    let mut reference = reference.map(ready).transpose()?;
    let mut tally = Tally::default();
    let total = cut.n_windows as u64;
    for (index, window) in cut
        .ids
        .chunks(options.window)
        .take(cut.n_windows)
        .enumerate()
    {
        on_progress(Progress {
            stage: "scoring",
            done: index as u64,
            total,
        });
        let input: Vec<u32> = cut.prefix.iter().chain(window).copied().collect();
        let place = Window {
            index,
            input: &input,
            n_context: cut.prefix.len().max(1),
        };
        score_window(&place, &mut run, reference.as_mut(), options, &mut tally)?;
        if let Ok(extents) = &extents {
            let first = index * options.window;
            let scored = first + place.n_context - cut.prefix.len()..first + window.len();
            extents[scored]
                .iter()
                .for_each(|one| tally.add_extent(*one));
        }
    }
    on_progress(Progress {
        stage: "scoring",
        done: total,
        total,
    });
    if tally.tokens == 0 {
        return Err(ScoreError::NothingScored { model: run.name }.into());
    }
    Ok(report(
        text,
        options,
        cut,
        extents.err(),
        run,
        reference,
        tally,
    ))
}

/// The ids of the text without the beginning of sequence, which each window gets of its own.
fn cut_text(db: &Database, text: &ScoreText, options: &ScoreOptions) -> Result<Cut, DbError> {
    if options.rows_per_pass == 0 {
        return Err(ScoreError::RowsPerPass.into());
    }
    let tokenizer = db.tokenizer()?;
    let prefix = prefix(db)?;
    check_window(db, prefix.len(), options)?;
    let ids = tokenizer.encode(text.as_str(), EncodeSpecial::Plain, Bos::Never)?;
    let n_windows = ids.len().div_ceil(options.window);
    Ok(Cut {
        prefix,
        ids,
        n_windows: options
            .windows
            .map_or(n_windows, |n| n_windows.min(n.get())),
    })
}

/// What the model wants before a text.
fn prefix(db: &Database) -> Result<Vec<u32>, DbError> {
    let special = db.tokenizer()?.special();
    Ok(if special.add_bos {
        special.prefix.clone()
    } else {
        Vec::new()
    })
}

fn check_window(db: &Database, prefix: usize, options: &ScoreOptions) -> Result<(), ScoreError> {
    let spec = db.spec();
    let learned = spec.embedding.learned_positions;
    let n_ctx = learned.map_or(spec.n_ctx, |n| n.min(spec.n_ctx)) as usize;
    let max = n_ctx.saturating_sub(prefix);
    if (WINDOW_TOKENS_MIN..=max).contains(&options.window) {
        return Ok(());
    }
    Err(ScoreError::WindowLength {
        model: db.name(),
        got: options.window,
        max,
        n_ctx,
        prefix,
    })
}

/// Refuses two sides of which a comparison would say nothing, or something wrong.
fn comparable(
    run: &Arm<'_>,
    reference: &Arm<'_>,
    text: &ScoreText,
    cut: &Cut,
    options: &ScoreOptions,
) -> Result<(), DbError> {
    let profile = run.runtime.profile();
    if std::ptr::eq(run.db, reference.db) {
        return if profile == reference.runtime.profile() {
            let profile = profile.name();
            Err(ScoreError::SameRun { profile }.into())
        } else {
            Ok(())
        };
    }
    let (run_tokens, reference_tokens) = (run.db.spec().d_vocab, reference.db.spec().d_vocab);
    if run_tokens != reference_tokens {
        return Err(ScoreError::VocabularySize {
            run: run.db.name(),
            run_tokens,
            reference: reference.db.name(),
            reference_tokens,
        }
        .into());
    }
    let other = cut_text(reference.db, text, options)?;
    for (what, ours, theirs) in [
        ("the beginning of sequence", &cut.prefix, &other.prefix),
        ("the text", &cut.ids, &other.ids),
    ] {
        let n = ours.len().max(theirs.len());
        if let Some(at) = (0..n).find(|at| ours.get(*at) != theirs.get(*at)) {
            return Err(ScoreError::UnequalTokenizers {
                run: run.db.name(),
                reference: reference.db.name(),
                what,
                at,
                run_id: ours.get(at).copied(),
                reference_id: theirs.get(at).copied(),
            }
            .into());
        }
    }
    Ok(())
}

fn ready(arm: Arm<'_>) -> Result<Ready<'_>, DbError> {
    let Arm { db, runtime } = arm;
    Ok(Ready {
        name: db.name(),
        model: db.model()?,
        runtime,
    })
}

/// One window with what stands before it.
struct Window<'a> {
    index: usize,
    input: &'a [u32],
    /// Tokens at the beginning of `input` that are not scored.
    n_context: usize,
}

/// Runs one window in a fresh context, both sides in step so that only a few rows of logits are in memory.
fn score_window(
    window: &Window<'_>,
    run: &mut Ready<'_>,
    mut reference: Option<&mut Ready<'_>>,
    options: &ScoreOptions,
    tally: &mut Tally,
) -> Result<(), DbError> {
    let fresh = |model: &Model| [SequenceState::with_length(model.spec(), window.input.len())];
    let mut run_state = fresh(run.model);
    let mut reference_state = reference.as_ref().map(|reference| fresh(reference.model));
    // What comes after the last token is not asked.
    let fed = &window.input[..window.input.len() - 1];
    for tokens in fed.chunks(options.rows_per_pass) {
        let run_logits = pass(run, tokens, &mut run_state, window)?;
        let reference_logits = match (&mut reference, &mut reference_state) {
            (Some(reference), Some(state)) => Some(pass(reference, tokens, state, window)?),
            (Some(_) | None, _) => None,
        };
        let rows = positions(window, &run_logits, reference_logits.as_ref());
        let mut results: Vec<Option<Result<Scored, NotFinite>>> = vec![None; rows.len()];
        run.runtime
            .team()
            .claim_chunks_mut(&mut results, 1, |i, result| {
                let row = &rows[i];
                result[0] = Some(scored(row.run, row.reference, row.target));
            });
        for (row, result) in rows.iter().zip(results) {
            match result.expect("every row has been scored") {
                Ok(scored) => tally.add(&scored),
                Err(NotFinite { side, id }) => {
                    let model = match (side, &reference) {
                        (Side::Reference, Some(reference)) => reference.name.clone(),
                        (Side::Reference, None) | (Side::Run, _) => run.name.clone(),
                    };
                    return Err(ScoreError::LogitNotFinite {
                        model,
                        window: window.index,
                        position: row.position,
                        id,
                    }
                    .into());
                }
            }
        }
    }
    Ok(())
}

fn pass(
    side: &mut Ready<'_>,
    tokens: &[u32],
    state: &mut [SequenceState; 1],
    window: &Window<'_>,
) -> Result<Logits, DbError> {
    let input = SequenceInput {
        tokens,
        logits: WantedLogits::All,
    };
    forward(side.model, side.runtime, &[input], state, None).map_err(|error| match error {
        EngineError::LogitNotFinite { position, id, .. } => ScoreError::LogitNotFinite {
            model: side.name.clone(),
            window: window.index,
            position,
            id,
        }
        .into(),
        other => other.into(),
    })
}

/// One position to score.
struct Row<'a> {
    position: usize,
    run: &'a [f32],
    reference: Option<&'a [f32]>,
    target: u32,
}

/// The rows of a pass whose next token is scored.
fn positions<'a>(
    window: &Window<'_>,
    run: &'a Logits,
    reference: Option<&'a Logits>,
) -> Vec<Row<'a>> {
    let mut reference_rows = reference.map(Logits::rows);
    run.rows()
        .map(|(place, row)| Row {
            position: place.position,
            run: row,
            reference: reference_rows
                .as_mut()
                .and_then(|rows| rows.next().map(|(_, row)| row)),
            target: window.input[place.position + 1],
        })
        .filter(|row| row.position + 1 >= window.n_context)
        .collect()
}

fn report(
    text: &ScoreText,
    options: &ScoreOptions,
    cut: Cut,
    differs_at_byte: Option<u64>,
    run: Ready<'_>,
    reference: Option<Ready<'_>>,
    tally: Tally,
) -> ScoreReport {
    let Cut {
        prefix,
        ids,
        n_windows,
    } = cut;
    let used = &ids[..ids.len().min(n_windows.saturating_mul(options.window))];
    let id_bytes: Vec<u8> = used.iter().flat_map(|id| id.to_le_bytes()).collect();
    let (tokens, bits) = (tally.tokens, tally.bits());
    let (bytes, characters) = match differs_at_byte {
        None => (Some(tally.bytes), Some(tally.characters)),
        Some(_) => (None, None),
    };
    // A text of no byte has no figure per byte, rather than an infinite one.
    let per = |n: Option<u64>| n.filter(|n| *n > 0).map(|n| bits / n as f64);
    ScoreReport {
        file_sha256: text.file_sha256.clone(),
        file_bytes: text.file_bytes,
        byte_range: [text.range.start, text.range.end],
        bytes,
        characters,
        differs_at_byte: differs_at_byte.map(|at| text.range.start + at),
        tokens,
        context_tokens: used.len() - tokens,
        windows: n_windows,
        window: options.window,
        prefix_ids: prefix,
        ids_sha256: hex_sha256(&id_bytes),
        model: run.name,
        profile: run.runtime.profile().name(),
        tiles: run.model.tile_place(),
        bits,
        bits_per_token: bits / tokens as f64,
        bits_per_byte: per(bytes),
        bits_per_char: per(characters),
        against: reference.map(|side| {
            let profile = side.runtime.profile().name();
            tally.comparison(side.name, profile, side.model.tile_place())
        }),
    }
}
