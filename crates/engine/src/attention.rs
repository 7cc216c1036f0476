//! Softmax attention of new positions over what their sequences remember.
//!
//! Each (position, head) is worked out alone, keys in order of position, so results do not depend on what else is in the
//! batch or on how a prompt was split.

use std::cell::RefCell;

use larql_kernels::Kernels;
use larql_models::spec::AttentionSpec;

use crate::error::EngineError;
use crate::runtime::Runtime;
use crate::state::{KvRows, SequenceState};
use crate::tap::{RowPlace, Tap, TapPoint};

thread_local! {
    static PATTERN: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `z[row, head] = sum_j pattern[row, head, j] * v[j]` (`[rows, n_heads * d_head]`).
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
pub(crate) fn attend(
    runtime: &mut Runtime,
    spec: &AttentionSpec,
    layer: usize,
    states: &[SequenceState],
    rows: &[RowPlace],
    q: &[f32],
    z: &mut [f32],
    tap: &mut Option<&mut dyn Tap>,
) -> Result<(), EngineError> {
    let (n_heads, d_head, kernels) = (spec.n_heads as usize, spec.d_head as usize, runtime.kernels);
    if let Some(tap) = tap
        .as_mut()
        .filter(|tap| tap.wants(TapPoint::AttnPattern, layer))
    {
        return attend_tapped(kernels, spec, layer, states, rows, q, z, *tap);
    }
    runtime.team.chunks_mut(z, d_head, |chunk, z| {
        let (place, head) = (rows[chunk / n_heads], chunk % n_heads);
        let kv = states[place.sequence].layer(layer);
        PATTERN.with_borrow_mut(|pattern| {
            pattern.resize(place.position + 1, 0.0);
            fill_pattern(
                kernels,
                spec,
                kv,
                head,
                place.position,
                &q[chunk * d_head..][..d_head],
                pattern,
            );
            weigh_values(kernels, spec, kv, head, pattern, z);
        });
    });
    Ok(())
}

/// As [`attend`], handing each position's pattern to the tap between its two halves.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
fn attend_tapped(
    kernels: &Kernels,
    spec: &AttentionSpec,
    layer: usize,
    states: &[SequenceState],
    rows: &[RowPlace],
    q: &[f32],
    z: &mut [f32],
    tap: &mut dyn Tap,
) -> Result<(), EngineError> {
    let (n_heads, d_head) = (spec.n_heads as usize, spec.d_head as usize);
    for (row, place) in rows.iter().enumerate() {
        let kv = states[place.sequence].layer(layer);
        let n_keys = place.position + 1;
        let mut patterns = vec![0.0; n_heads * n_keys];
        for (head, pattern) in patterns.chunks_exact_mut(n_keys).enumerate() {
            let q = &q[(row * n_heads + head) * d_head..][..d_head];
            fill_pattern(kernels, spec, kv, head, place.position, q, pattern);
        }
        tap.visit(TapPoint::AttnPattern, layer, *place, &mut patterns)
            .map_err(|message| EngineError::Tap {
                layer,
                point: TapPoint::AttnPattern.name(),
                message,
            })?;
        for (head, pattern) in patterns.chunks_exact(n_keys).enumerate() {
            weigh_values(
                kernels,
                spec,
                kv,
                head,
                pattern,
                &mut z[(row * n_heads + head) * d_head..][..d_head],
            );
        }
    }
    Ok(())
}

/// First key that `position` sees.
fn first_key(spec: &AttentionSpec, position: usize) -> usize {
    spec.window
        .map_or(0, |window| (position + 1).saturating_sub(window as usize))
}

/// `pattern[j] = softmax_j(softcap(scale * q . k[j]))` over the visible keys, zero elsewhere.
fn fill_pattern(
    kernels: &Kernels,
    spec: &AttentionSpec,
    kv: &KvRows,
    head: usize,
    position: usize,
    q: &[f32],
    pattern: &mut [f32],
) {
    let (d_head, kv_head) = (
        spec.d_head as usize,
        head / (spec.n_heads / spec.n_kv_heads) as usize,
    );
    let first = first_key(spec, position);
    let (hidden, visible) = pattern.split_at_mut(first);
    hidden.fill(0.0);
    for (j, score) in visible.iter_mut().enumerate() {
        *score = kernels.dot_f32(q, kv.key(first + j, kv_head, d_head)) * spec.scale;
    }
    if let Some(cap) = spec.softcap {
        visible
            .iter_mut()
            .for_each(|score| *score = cap * (*score / cap).tanh());
    }
    kernels.softmax_in_place(visible);
}

/// `z = sum_j pattern[j] * v[j]`, over keys with weight.
fn weigh_values(
    kernels: &Kernels,
    spec: &AttentionSpec,
    kv: &KvRows,
    head: usize,
    pattern: &[f32],
    z: &mut [f32],
) {
    let (d_head, kv_head) = (
        spec.d_head as usize,
        head / (spec.n_heads / spec.n_kv_heads) as usize,
    );
    z.fill(0.0);
    for (j, weight) in pattern.iter().enumerate() {
        // Hidden keys have weight zero; skipping them keeps a non-finite value there from leaking in.
        if *weight != 0.0 {
            kernels.axpy(*weight, kv.value(j, kv_head, d_head), z);
        }
    }
}
