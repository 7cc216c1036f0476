//! Comparison with a reference run, stage by stage.
//!
//! The reference is a safetensors file of another program's numbers. The report names the first stage that differs by
//! more than the tolerance, because later ones only inherit it. Not a benchmark and not a quality score.

use std::path::Path;

use larql_engine::{
    EngineError, Model, Recorder, RowPlace, Runtime, SequenceInput, SequenceState, TapPoint,
    WantedLogits, forward,
};
use larql_formats::Dtype;
use larql_formats::safetensors::SafetensorsFile;
use serde::Serialize;

use crate::error::DbError;

/// Largest relative error of a stage that counts as equal: float32 noise of another summation order stays far below.
pub const TOLERANCE_REL: f64 = 1e-4;
/// Tokens of the prompt from which the greedy continuation starts.
const GREEDY_PROMPT_TOKENS: usize = 11;

/// A reference run.
#[derive(Debug, Clone)]
pub struct Golden {
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// `[n_layers + 1, n_tokens, d_model]`: layer inputs, then the final norm.
    pub hidden_states: Vec<f32>,
    /// `[n_tokens, d_vocab]`.
    pub logits: Vec<f32>,
    /// Continuation by arg-max of the prompt's first eleven tokens.
    pub greedy: Vec<u32>,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParityReport {
    /// Row of the family table.
    pub family: String,
    /// Largest absolute difference over all stages.
    pub max_abs_err: f64,
    /// Largest over all stages of `max |ours - reference| / max |reference|`.
    pub max_rel_err: f64,
    /// The first stage over the tolerance.
    pub first_divergence: Option<String>,
    /// The first stage where this program computed a value that is infinite or no number.
    pub first_not_finite: Option<String>,
    /// Whether the greedy continuation is the same.
    pub greedy_match: bool,
    /// Every stage, in order.
    pub stages: Vec<StageError>,
}

/// One stage's difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageError {
    /// Its name.
    pub stage: String,
    /// Largest absolute difference; not finite if the stage is not.
    pub max_abs_err: f64,
    /// That, over the reference's largest magnitude.
    pub rel_err: f64,
}

impl StageError {
    /// Whether the stage has a value that is infinite or no number; the reference never has.
    pub fn is_not_finite(&self) -> bool {
        !self.max_abs_err.is_finite()
    }
}

impl Golden {
    /// Reads a reference file.
    ///
    /// # Errors
    /// If a tensor is missing, of another type, or holds values that are not finite.
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let file = SafetensorsFile::open(path)?;
        Ok(Self {
            input_ids: integers(&file, path, "input_ids")?,
            hidden_states: floats(&file, path, "hidden_states")?,
            logits: floats(&file, path, "logits")?,
            greedy: integers(&file, path, "greedy")?,
        })
    }
}

/// Runs the reference's prompt and compares every stage.
///
/// # Errors
/// If the shapes of the reference are not those of the model, or the run fails.
pub fn parity(
    model: &Model,
    runtime: &mut Runtime,
    golden: &Golden,
) -> Result<ParityReport, DbError> {
    let spec = model.spec();
    let (n, n_layers) = (golden.input_ids.len(), spec.n_layers());
    let (d_model, d_vocab) = (spec.d_model as usize, spec.d_vocab as usize);
    expect_len(
        "hidden_states",
        golden.hidden_states.len(),
        (n_layers + 1) * n * d_model,
    )?;
    expect_len("logits", golden.logits.len(), n * d_vocab)?;
    if n < GREEDY_PROMPT_TOKENS {
        return Err(DbError::Golden {
            what: format!("{n} prompt tokens, at least {GREEDY_PROMPT_TOKENS} are needed"),
        });
    }
    let points = [TapPoint::ResidPre, TapPoint::ResidPost, TapPoint::FinalNorm];
    let mut recorder = Recorder::new(&points);
    let mut states = [SequenceState::with_length(spec, n)];
    let input = SequenceInput {
        tokens: &golden.input_ids,
        logits: WantedLogits::All,
    };
    let logits = match forward(model, runtime, &[input], &mut states, Some(&mut recorder)) {
        Ok(logits) => Some(logits),
        Err(EngineError::LogitNotFinite { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let mut stages = Vec::with_capacity(n_layers + 2);
    for stage in 0..=n_layers {
        let (point, layer, name) = match stage {
            0 => (TapPoint::ResidPre, 0, "embed".to_owned()),
            // A reference with several streams ends with the last layer's, before they are joined.
            last if last == n_layers && spec.altup.is_none() => {
                (TapPoint::FinalNorm, n_layers, "final_norm".to_owned())
            }
            stage => (
                TapPoint::ResidPost,
                stage - 1,
                format!("layer {} resid_post", stage - 1),
            ),
        };
        let ours = (0..n).flat_map(|position| {
            recorder
                .find(
                    point,
                    layer,
                    RowPlace {
                        sequence: 0,
                        position,
                    },
                )
                .expect("every position was recorded")
        });
        stages.push(compare(
            name,
            ours,
            &golden.hidden_states[stage * n * d_model..][..n * d_model],
        ));
    }
    stages.push(match &logits {
        Some(logits) => compare(
            "logits".to_owned(),
            logits.rows().flat_map(|(_, row)| row),
            &golden.logits,
        ),
        None => StageError {
            stage: "logits".to_owned(),
            max_abs_err: f64::INFINITY,
            rel_err: f64::INFINITY,
        },
    });
    let worst = |f: fn(&StageError) -> f64| stages.iter().map(f).fold(0.0, nan_max);
    let diverges = |stage: &&StageError| stage.rel_err.is_nan() || stage.rel_err > TOLERANCE_REL;
    let first = |found: &dyn Fn(&&StageError) -> bool| {
        stages.iter().find(found).map(|stage| stage.stage.clone())
    };
    Ok(ParityReport {
        family: spec.family.clone(),
        max_abs_err: worst(|stage| stage.max_abs_err),
        max_rel_err: worst(|stage| stage.rel_err),
        first_divergence: first(&diverges),
        first_not_finite: first(&|stage| stage.is_not_finite()),
        greedy_match: logits.is_some() && greedy(model, runtime, golden)? == golden.greedy,
        stages,
    })
}

/// Continues the prompt's first tokens one at a time, so that decoding is compared too.
fn greedy(model: &Model, runtime: &mut Runtime, golden: &Golden) -> Result<Vec<u32>, DbError> {
    let length = GREEDY_PROMPT_TOKENS + golden.greedy.len();
    let mut states = [SequenceState::with_length(model.spec(), length)];
    let mut tokens = golden.input_ids[..GREEDY_PROMPT_TOKENS].to_vec();
    let mut continuation = Vec::with_capacity(golden.greedy.len());
    while continuation.len() < golden.greedy.len() {
        let input = SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::Last,
        };
        let logits = forward(model, runtime, &[input], &mut states, None)?;
        let next = larql_engine::argmax(logits.last(0).expect("the last logits were asked for"));
        continuation.push(next);
        tokens = vec![next];
    }
    Ok(continuation)
}

fn compare<'a>(
    stage: String,
    ours: impl Iterator<Item = &'a f32>,
    reference: &[f32],
) -> StageError {
    let (mut error, mut magnitude) = (0.0, 0.0);
    for (x, want) in ours.zip(reference) {
        error = nan_max(error, (f64::from(*x) - f64::from(*want)).abs());
        magnitude = nan_max(magnitude, f64::from(*want).abs());
    }
    StageError {
        stage,
        max_abs_err: error,
        rel_err: error / f64::max(magnitude, f64::MIN_POSITIVE),
    }
}

/// The larger, or NaN if one is: a divergence to NaN must not look small.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

fn expect_len(tensor: &str, got: usize, expected: usize) -> Result<(), DbError> {
    if got == expected {
        return Ok(());
    }
    Err(DbError::Golden {
        what: format!("`{tensor}` has {got} values, this model makes {expected}"),
    })
}

fn floats(file: &SafetensorsFile, path: &Path, name: &str) -> Result<Vec<f32>, DbError> {
    let bytes = typed(file, path, name, Dtype::F32)?;
    let values: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    match values.iter().position(|x| !x.is_finite()) {
        None => Ok(values),
        Some(at) => Err(DbError::Golden {
            what: format!(
                "{}: value {at} of `{name}` is {}, which nothing can be compared with",
                path.display(),
                values[at]
            ),
        }),
    }
}

fn integers(file: &SafetensorsFile, path: &Path, name: &str) -> Result<Vec<u32>, DbError> {
    let bytes = typed(file, path, name, Dtype::I32)?;
    Ok(bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect())
}

fn typed(
    file: &SafetensorsFile,
    path: &Path,
    name: &str,
    dtype: Dtype,
) -> Result<larql_formats::Bytes, DbError> {
    let golden = |what: String| DbError::Golden {
        what: format!("{}: {what}", path.display()),
    };
    let info = file
        .tensor(name)
        .ok_or_else(|| golden(format!("no tensor `{name}`")))?;
    if info.dtype != dtype {
        return Err(golden(format!(
            "`{name}` is {}, expected {}",
            info.dtype.name(),
            dtype.name()
        )));
    }
    Ok(file.data(name)?)
}
