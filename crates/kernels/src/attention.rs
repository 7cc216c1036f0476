//! The two products of attention, over keys that are kept in tiles of eight and values that are kept in rows.
//!
//! A tile of keys is `[d_key, 8]`: lane `r` is key `8 t + r`, as lane `r` of a matrix's tile is a row.  Both are stored floats
//! of any kind, decoded once for many queries that meet them.  The sums of a query depend on nothing but that query, in the
//! order that `arch/scalar` says, so it does not matter which queries are worked out together.  What is masked, and the
//! softmax between the two, is the caller's.

use std::cell::RefCell;

use crate::arch::Kernels;
use crate::format::Format;
use crate::linear::few::{meet_one_stored, meet_stored};
use crate::linear::panels::{Sums, meet_decoded, meet_decoded_pair};
use crate::tile::TILE_ROWS;

/// Keys whose values meet all queries before the next ones do: few enough to stay in a first-level cache with their
/// values.
const BLOCK_KEYS: usize = 32;

/// Queries from which on keys and values are decoded ahead of them; for fewer, each group decodes them as it reads.
const DECODED_MIN: usize = 16;

/// Decoded keys and values and the scores of one thread, kept between calls.
#[derive(Default)]
struct Buffers {
    tile: Vec<[[f32; TILE_ROWS]; 1]>,
    pair: Vec<[[f32; TILE_ROWS]; 2]>,
    values: Vec<f32>,
    sums: Vec<Sums>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = const {
        RefCell::new(Buffers {
            tile: Vec::new(),
            pair: Vec::new(),
            values: Vec::new(),
            sums: Vec::new(),
        })
    };
}

/// Keys or values of one head as they are kept.
#[derive(Debug, Clone, Copy)]
pub struct KeptRows<'a> {
    /// A float format: one of a value each.
    pub format: Format,
    /// Values of a row.
    pub width: usize,
    /// Tiles `[width, 8]` of keys, or rows `[n_keys, width]` of values.
    pub bytes: &'a [u8],
}

impl KeptRows<'_> {
    /// Bytes of `n` rows.
    fn n_bytes(&self, n: usize) -> usize {
        assert_eq!(self.format.block_len(), 1, "a float format");
        n * self.width * self.format.block_bytes()
    }
}

impl Kernels {
    /// `out[q, j] = sum_d query[q, d] * key[j, d]` for all keys of the tiles, `out` being `[n_queries, stride]`.
    ///
    /// # Panics
    ///
    /// If `keys` is not whole tiles of floats, a query has another width, or `out` has no room for a score of every key.
    pub fn scores(&self, keys: KeptRows<'_>, queries: &[&[f32]], out: &mut [f32], stride: usize) {
        let (d_key, tile_bytes) = (keys.width, keys.n_bytes(TILE_ROWS));
        assert!(
            keys.bytes.len().is_multiple_of(tile_bytes),
            "whole tiles of keys"
        );
        assert!(queries.iter().all(|q| q.len() == d_key), "width of queries");
        assert!(
            keys.bytes.len() / tile_bytes * TILE_ROWS <= stride
                && out.len() >= queries.len() * stride,
            "room for the scores"
        );
        let n = queries.len();
        let of = |q: usize| queries[q];
        BUFFERS.with_borrow_mut(
            |Buffers {
                 tile: one,
                 pair: two,
                 sums,
                 ..
             }| {
                for (first, pair) in (0..)
                    .step_by(2 * TILE_ROWS)
                    .zip(keys.bytes.chunks(2 * tile_bytes))
                {
                    let n_tiles = pair.len() / tile_bytes;
                    sums.clear();
                    sums.resize(n_tiles * n, [0.0; TILE_ROWS]);
                    let (a, b) = sums.split_at_mut(n);
                    let (tile, second) = pair.split_at(tile_bytes);
                    if n >= DECODED_MIN {
                        let dots = self.float_dots();
                        if second.is_empty() {
                            one.resize(d_key, [[0.0; TILE_ROWS]; 1]);
                            (self.decode_tile)(keys.format, [tile], one);
                            meet_decoded(dots, one, of, a);
                        } else {
                            two.resize(d_key, [[0.0; TILE_ROWS]; 2]);
                            (self.decode_pair)(keys.format, [tile, second], two);
                            meet_decoded_pair(dots, two, of, [a, b]);
                        }
                    } else if second.is_empty() {
                        meet_one_stored(self.plain, keys.format, tile, of, a);
                    } else {
                        meet_stored(self.plain, keys.format, [tile, second], of, [a, b]);
                    }
                    for (first, sums) in (first..).step_by(TILE_ROWS).zip(sums.chunks_exact(n)) {
                        for (scores, sums) in out.chunks_mut(stride).zip(sums) {
                            scores[first..][..TILE_ROWS].copy_from_slice(sums);
                        }
                    }
                }
            },
        );
    }

    /// `out[q, d] = sum_j weight[q, j] * value[j, d]`: `weights` is `[n_queries, stride]` with a weight for each key first, `out`
    /// `[n_queries, d_value]`.
    ///
    /// # Panics
    ///
    /// If `values` or `out` are not whole rows, or a query has fewer weights than there are keys.
    pub fn weigh(&self, values: KeptRows<'_>, weights: &[f32], stride: usize, out: &mut [f32]) {
        let (d_value, row_bytes) = (values.width, values.n_bytes(1));
        let (n_keys, n_queries) = (values.bytes.len() / row_bytes, out.len() / d_value);
        assert!(
            values.bytes.len() == n_keys * row_bytes && out.len() == n_queries * d_value,
            "whole rows of values"
        );
        assert!(
            n_keys <= stride && weights.len() >= n_queries * stride,
            "a weight for every key"
        );
        out.fill(0.0);
        let (stored, decoded) = (self.weigh_stored, self.weigh);
        BUFFERS.with_borrow_mut(|Buffers { values: panel, .. }| {
            for (first, bytes) in (0..)
                .step_by(BLOCK_KEYS)
                .zip(values.bytes.chunks(BLOCK_KEYS * row_bytes))
            {
                let n = bytes.len() / row_bytes;
                let of = |q: usize| &weights[q * stride + first..][..n];
                let four = |q: usize| [of(q), of(q + 1), of(q + 2), of(q + 3)];
                if n_queries < DECODED_MIN {
                    by_queries(
                        d_value,
                        out,
                        |q, out| (stored.four)(values.format, bytes, d_value, four(q), out),
                        |q, out| {
                            (stored.two)(values.format, bytes, d_value, [of(q), of(q + 1)], out);
                        },
                        |q, out| (stored.one)(values.format, bytes, d_value, [of(q)], out),
                    );
                    continue;
                }
                panel.resize(BLOCK_KEYS * d_value, 0.0);
                let rows = &mut panel[..n * d_value];
                self.decode(values.format, bytes, rows);
                by_queries(
                    d_value,
                    out,
                    |q, out| (decoded.four)(rows, d_value, four(q), out),
                    |q, out| (decoded.two)(rows, d_value, [of(q), of(q + 1)], out),
                    |q, out| (decoded.one)(rows, d_value, [of(q)], out),
                );
            }
        });
    }
}

/// Calls the functions for four, two and one of the queries whose sums are the rows of `out`, until all have been seen.
fn by_queries(
    width: usize,
    out: &mut [f32],
    mut four: impl FnMut(usize, &mut [f32]),
    mut two: impl FnMut(usize, &mut [f32]),
    mut one: impl FnMut(usize, &mut [f32]),
) {
    let mut q = 0;
    let mut fours = out.chunks_exact_mut(4 * width);
    for out in &mut fours {
        four(q, out);
        q += 4;
    }
    let mut twos = fours.into_remainder().chunks_exact_mut(2 * width);
    for out in &mut twos {
        two(q, out);
        q += 2;
    }
    for out in twos.into_remainder().chunks_exact_mut(width) {
        one(q, out);
        q += 1;
    }
}
