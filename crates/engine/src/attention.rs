//! Softmax attention of new positions over what their sequences remember.
//!
//! Each (position, head) is worked out alone, keys in order of position, so results do not depend on what else is in the
//! batch or on how a prompt was split.

use std::cell::RefCell;

use larql_kernels::Kernels;

use crate::error::EngineError;
use crate::runtime::Runtime;
use crate::state::{KvRows, SequenceState};
use crate::tap::{RowPlace, Tap, TapPoint};

thread_local! {
    static PATTERN: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Sizes and rules of one layer's attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) d_key: usize,
    pub(crate) d_value: usize,
    /// Factor on `q . k`.
    pub(crate) scale: f32,
    /// Keys visible to a query, itself included.
    pub(crate) window: Option<u32>,
    pub(crate) softcap: Option<f32>,
    /// A logit per head that joins the softmax.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// `z[row, head] = sum_j pattern[row, head, j] * v[j]` (`[rows, n_heads * d_value]`), over the rows that layer `kept` keeps.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
pub(crate) fn attend(
    runtime: &mut Runtime,
    heads: Heads<'_>,
    layer: usize,
    kept: usize,
    states: &[SequenceState],
    rows: &[RowPlace],
    q: &[f32],
    z: &mut [f32],
    tap: &mut Option<&mut dyn Tap>,
) -> Result<(), EngineError> {
    let kernels = runtime.kernels;
    if let Some(tap) = tap
        .as_mut()
        .filter(|tap| tap.wants(TapPoint::AttnPattern, layer))
    {
        return attend_tapped(kernels, heads, layer, kept, states, rows, q, z, *tap);
    }
    // Later positions see more keys.
    runtime.team.claim_chunks_mut(z, heads.d_value, |chunk, z| {
        let (place, head) = (rows[chunk / heads.n_heads], chunk % heads.n_heads);
        let kv = states[place.sequence].rows(kept);
        let q = &q[chunk * heads.d_key..][..heads.d_key];
        PATTERN.with_borrow_mut(|pattern| {
            let n_keys = place.position + 1;
            fill_pattern(kernels, &heads, kv, head, n_keys, q, pattern);
            weigh_values(kernels, &heads, kv, head, &pattern[..n_keys], z);
        });
    });
    Ok(())
}

/// As [`attend`], handing each position's pattern to the tap between its two halves.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
fn attend_tapped(
    kernels: &Kernels,
    heads: Heads<'_>,
    layer: usize,
    kept: usize,
    states: &[SequenceState],
    rows: &[RowPlace],
    q: &[f32],
    z: &mut [f32],
    tap: &mut dyn Tap,
) -> Result<(), EngineError> {
    let mut scratch = Vec::new();
    for (row, place) in rows.iter().enumerate() {
        let kv = states[place.sequence].rows(kept);
        let n_keys = place.position + 1;
        let mut patterns = vec![0.0; heads.n_heads * n_keys];
        for (head, pattern) in patterns.chunks_exact_mut(n_keys).enumerate() {
            let q = &q[(row * heads.n_heads + head) * heads.d_key..][..heads.d_key];
            fill_pattern(kernels, &heads, kv, head, n_keys, q, &mut scratch);
            pattern.copy_from_slice(&scratch[..n_keys]);
        }
        tap.visit(TapPoint::AttnPattern, layer, *place, &mut patterns)
            .map_err(|message| EngineError::Tap {
                layer,
                point: TapPoint::AttnPattern.name(),
                message,
            })?;
        for (head, pattern) in patterns.chunks_exact(n_keys).enumerate() {
            let z = &mut z[(row * heads.n_heads + head) * heads.d_value..][..heads.d_value];
            weigh_values(kernels, &heads, kv, head, pattern, z);
        }
    }
    Ok(())
}

/// `pattern[j] = softmax_j(softcap(scale * q . k[j]))` over the visible keys, zero elsewhere, for the first `n_keys`. A sink
/// takes its share of the softmax and has no value.
fn fill_pattern(
    kernels: &Kernels,
    heads: &Heads<'_>,
    kv: &KvRows,
    head: usize,
    n_keys: usize,
    q: &[f32],
    pattern: &mut Vec<f32>,
) {
    let kv_head = head / (heads.n_heads / heads.n_kv_heads);
    let first = heads
        .window
        .map_or(0, |window| n_keys.saturating_sub(window as usize));
    pattern.clear();
    pattern.resize(n_keys, 0.0);
    for (j, score) in pattern[first..].iter_mut().enumerate() {
        *score = kernels.dot_f32(q, kv.key(first + j, kv_head, heads.d_key)) * heads.scale;
    }
    if let Some(cap) = heads.softcap {
        for score in &mut pattern[first..] {
            *score = cap * (*score / cap).tanh();
        }
    }
    if let Some(sinks) = heads.sinks {
        pattern.push(sinks[head]);
    }
    kernels.softmax_in_place(&mut pattern[first..]);
}

/// `z = sum_j pattern[j] * v[j]`, over keys with weight.
fn weigh_values(
    kernels: &Kernels,
    heads: &Heads<'_>,
    kv: &KvRows,
    head: usize,
    pattern: &[f32],
    z: &mut [f32],
) {
    let kv_head = head / (heads.n_heads / heads.n_kv_heads);
    z.fill(0.0);
    for (j, weight) in pattern.iter().enumerate() {
        // Hidden keys have weight zero; skipping them keeps a non-finite value there from leaking in.
        if *weight != 0.0 {
            kernels.axpy(*weight, kv.value(j, kv_head, heads.d_value), z);
        }
    }
}
