//! Softmax attention of new positions over what their sequences remember.
//!
//! The queries that share keys (a few positions, and the heads of one K/V head) are worked out together, because what
//! costs is to load keys and values. Each query's sums run over its keys in order of position and nothing else, so
//! results do not depend on what else is in the batch, on how a prompt was split, or on how queries are grouped.

use std::ops::Range;

use larql_kernels::{Kernels, TILE_ROWS};

use crate::error::EngineError;
use crate::runtime::Runtime;
use crate::state::{KvHead, ROOM, SequenceState};
use crate::tap::{RowPlace, Tap, TapPoint};

/// Queries that are worked out together at most: their scores of some thousand keys stay in a second-level cache.
const QUERIES_MAX: usize = 16;

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

/// Queries that are worked out together, and room for their work.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Rows of the batch, all of one sequence.
    rows: Range<usize>,
    /// Heads that share a K/V head.
    heads: Range<usize>,
    /// Key of the first column of the pattern.
    first_key: usize,
    /// Columns of the pattern.
    stride: usize,
    /// `[queries, stride]`.
    pattern: Vec<f32>,
    /// `[queries, d_value]`.
    z: Vec<f32>,
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
    let (kernels, n_threads) = (runtime.kernels, runtime.team.n_threads());
    let mut groups = std::mem::take(&mut runtime.groups);
    let tap = tap
        .as_mut()
        .filter(|tap| tap.wants(TapPoint::AttnPattern, layer));
    let n_groups = group(&mut groups, &heads, rows, n_threads, tap.is_some());
    let groups_of_pass = &mut groups[..n_groups];
    let kv = |group: &Group| {
        let place = rows[group.rows.start];
        states[place.sequence]
            .rows(kept)
            .head(heads.kv_head(group.heads.start))
    };
    let result = match tap {
        Some(tap) => {
            for group in &mut *groups_of_pass {
                group.fill_pattern(kernels, &heads, kv(group), rows, q);
            }
            show_patterns(*tap, layer, heads.n_heads, rows, groups_of_pass).map(|()| {
                for group in &mut *groups_of_pass {
                    group.weigh_values(kernels, &heads, kv(group), rows);
                }
            })
        }
        None => {
            // Later positions see more keys.
            runtime
                .team
                .claim_chunks_mut(groups_of_pass, 1, |_, group| {
                    let group = &mut group[0];
                    group.fill_pattern(kernels, &heads, kv(group), rows, q);
                    group.weigh_values(kernels, &heads, kv(group), rows);
                });
            Ok(())
        }
    };
    for group in &*groups_of_pass {
        for (query, from) in group.z.chunks_exact(heads.d_value).enumerate() {
            let (row, head) = group.query(query);
            z[(row * heads.n_heads + head) * heads.d_value..][..heads.d_value]
                .copy_from_slice(from);
        }
    }
    runtime.groups = groups;
    result
}

/// Sorts the queries of a pass into groups, keeping the memory of earlier ones; returns how many. Where patterns are shown
/// they have a column for every key.
fn group(
    groups: &mut Vec<Group>,
    heads: &Heads<'_>,
    rows: &[RowPlace],
    n_threads: usize,
    shown: bool,
) -> usize {
    let per_kv = heads.n_heads / heads.n_kv_heads;
    let n_rows = (QUERIES_MAX / per_kv).max(1);
    let mut n_heads = per_kv.min(QUERIES_MAX);
    if rows.len().div_ceil(n_rows) * heads.n_kv_heads < n_threads {
        // Too few groups for the team, as when one position is decoded over one K/V head.
        n_heads = per_kv.div_ceil(n_threads);
    }
    let mut n_groups = 0;
    let mut first = 0;
    for of_sequence in rows.chunk_by(|a, b| a.sequence == b.sequence) {
        for start in (first..first + of_sequence.len()).step_by(n_rows) {
            let end = (first + of_sequence.len()).min(start + n_rows);
            for first_head in (0..heads.n_heads).step_by(per_kv) {
                for head in (first_head..first_head + per_kv).step_by(n_heads) {
                    if groups.len() == n_groups {
                        groups.push(Group::default());
                    }
                    let group = &mut groups[n_groups];
                    group.rows = start..end;
                    group.heads = head..(first_head + per_kv).min(head + n_heads);
                    let (from, to) = (rows[start].position, rows[end - 1].position);
                    group.first_key = match shown {
                        true => 0,
                        false => heads.first_visible(from) / TILE_ROWS * TILE_ROWS,
                    };
                    // Whole tiles of keys, and a place for a sink.
                    group.stride = (to + 1 - group.first_key).next_multiple_of(TILE_ROWS) + 1;
                    n_groups += 1;
                }
            }
        }
        first += of_sequence.len();
    }
    n_groups
}

/// Hands each position's pattern (`[n_heads, n_keys]`) to the tap and takes it back.
fn show_patterns(
    tap: &mut dyn Tap,
    layer: usize,
    n_heads: usize,
    rows: &[RowPlace],
    groups: &mut [Group],
) -> Result<(), EngineError> {
    let mut shown = Vec::new();
    for (row, place) in rows.iter().enumerate() {
        let n_keys = place.position + 1;
        shown.clear();
        shown.resize(n_heads * n_keys, 0.0);
        let with_row = |group: &Group| group.rows.contains(&row);
        for group in groups.iter().filter(|group| with_row(group)) {
            for head in group.heads.clone() {
                shown[head * n_keys..][..n_keys]
                    .copy_from_slice(&group.pattern[group.pattern_at(row, head)..][..n_keys]);
            }
        }
        tap.visit(TapPoint::AttnPattern, layer, *place, &mut shown)
            .map_err(|message| EngineError::Tap {
                layer,
                point: TapPoint::AttnPattern.name(),
                message,
            })?;
        for group in groups.iter_mut().filter(|group| with_row(group)) {
            for head in group.heads.clone() {
                let at = group.pattern_at(row, head);
                group.pattern[at..][..n_keys].copy_from_slice(&shown[head * n_keys..][..n_keys]);
            }
        }
    }
    Ok(())
}

impl Heads<'_> {
    fn kv_head(&self, head: usize) -> usize {
        head / (self.n_heads / self.n_kv_heads)
    }

    /// The first key that the query at `position` sees.
    fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window as usize))
    }
}

impl Group {
    fn n_queries(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Row and head of a query.
    fn query(&self, query: usize) -> (usize, usize) {
        let n_heads = self.heads.len();
        (
            self.rows.start + query / n_heads,
            self.heads.start + query % n_heads,
        )
    }

    fn pattern_at(&self, row: usize, head: usize) -> usize {
        let query = (row - self.rows.start) * self.heads.len() + head - self.heads.start;
        query * self.stride
    }

    /// `pattern[j] = softmax_j(softcap(scale * q . k[j]))` over the visible keys, zero elsewhere. A sink takes its share of
    /// the softmax and has no value.
    fn fill_pattern(
        &mut self,
        kernels: &Kernels,
        heads: &Heads<'_>,
        kv: &KvHead,
        rows: &[RowPlace],
        q: &[f32],
    ) {
        let n_queries = self.n_queries();
        let mut queries: [&[f32]; QUERIES_MAX] = [&[]; QUERIES_MAX];
        for (i, query) in queries[..n_queries].iter_mut().enumerate() {
            let (row, head) = self.query(i);
            *query = &q[(row * heads.n_heads + head) * heads.d_key..][..heads.d_key];
        }
        let n_keys = rows[self.rows.end - 1].position + 1;
        // As far as the sequence has room, so that a step allocates when it makes more and not between.
        let n_scores = n_queries * ((self.stride - 1).next_multiple_of(ROOM) + 1);
        if self.pattern.capacity() < n_scores {
            self.pattern.reserve(n_scores - self.pattern.len());
        }
        self.pattern.resize(n_queries * self.stride, 0.0);
        kernels.scores(
            kv.key_tiles(self.first_key..n_keys),
            &queries[..n_queries],
            &mut self.pattern,
            self.stride,
        );
        for i in 0..n_queries {
            let (row, head) = self.query(i);
            let position = rows[row].position;
            let pattern = &mut self.pattern[i * self.stride..][..self.stride];
            let first = heads.first_visible(position) - self.first_key;
            let end = position + 1 - self.first_key;
            pattern[..first].fill(0.0);
            pattern[end..].fill(0.0);
            for score in &mut pattern[first..end] {
                *score *= heads.scale;
            }
            if let Some(cap) = heads.softcap {
                for score in &mut pattern[first..end] {
                    *score = cap * (*score / cap).tanh();
                }
            }
            match heads.sinks {
                None => kernels.softmax_in_place(&mut pattern[first..end]),
                Some(sinks) => {
                    pattern[end] = sinks[head];
                    kernels.softmax_in_place(&mut pattern[first..=end]);
                    pattern[end] = 0.0;
                }
            }
        }
    }

    /// `z = sum_j pattern[j] * v[j]`.
    fn weigh_values(
        &mut self,
        kernels: &Kernels,
        heads: &Heads<'_>,
        kv: &KvHead,
        rows: &[RowPlace],
    ) {
        let n_keys = rows[self.rows.end - 1].position + 1;
        self.z.resize(self.n_queries() * heads.d_value, 0.0);
        kernels.weigh(
            kv.values(self.first_key..n_keys),
            &self.pattern,
            self.stride,
            &mut self.z,
        );
    }
}
