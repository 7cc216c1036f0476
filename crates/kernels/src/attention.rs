//! The two products of attention, over keys that are kept in tiles of eight and values that are kept in rows.
//!
//! A tile of keys is `[d_key, 8]`: lane `r` is key `8 t + r`, as lane `r` of a matrix's tile is a row.  Both are stored floats
//! of any kind, decoded once for the queries that meet them.  The sums of a query depend on nothing but that query, in the
//! order that `arch/scalar` says, so it does not matter which queries are worked out together.  What is masked, and the
//! softmax between the two, is the caller's.

use std::cell::RefCell;

use crate::arch::Kernels;
use crate::format::Format;
use crate::tile::TILE_ROWS;

/// Keys whose values meet all queries before the next ones do: few enough to stay in a first-level cache with their
/// values.
const BLOCK_KEYS: usize = 32;

/// Decoded keys and values of one thread, kept between calls.
#[derive(Default)]
struct Buffers {
    keys: Vec<[f32; TILE_ROWS]>,
    values: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = const {
        RefCell::new(Buffers {
            keys: Vec::new(),
            values: Vec::new(),
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
        BUFFERS.with_borrow_mut(|Buffers { keys: panels, .. }| {
            panels.resize(2 * d_key, [0.0; TILE_ROWS]);
            for (tile, pair) in (0..).step_by(2).zip(keys.bytes.chunks(2 * tile_bytes)) {
                let panels = &mut panels[..pair.len() / tile_bytes * d_key];
                self.decode_tile(keys.format, pair, panels);
                let (first, second) = panels.split_at(d_key);
                let second = (!second.is_empty()).then_some(second);
                let at = tile * TILE_ROWS;
                self.scores_of_pair([Some(first), second], queries, &mut out[at..], stride);
            }
        });
    }

    /// The scores of one or two decoded tiles.
    fn scores_of_pair(
        &self,
        tiles: [Option<&[[f32; TILE_ROWS]]>; 2],
        queries: &[&[f32]],
        out: &mut [f32],
        stride: usize,
    ) {
        let dots = self.float_dots();
        let mut put = |query: usize, tile: usize, sums: &[f32; TILE_ROWS]| {
            out[query * stride + tile * TILE_ROWS..][..TILE_ROWS].copy_from_slice(sums);
        };
        let (fours, rest) = queries.as_chunks::<4>();
        for (q, four) in (0..).step_by(4).zip(fours) {
            let mut sums = [[[0.0; TILE_ROWS]; 4]; 2];
            let [a, b] = &mut sums;
            match tiles {
                [Some(first), Some(second)] => (dots.pair)([first, second], *four, [a, b]),
                [first, second] => {
                    for (keys, sums) in [(first, a), (second, b)] {
                        if let Some(keys) = keys {
                            (dots.four)([keys], *four, [sums]);
                        }
                    }
                }
            }
            for (tile, sums) in (0..tiles.iter().flatten().count()).zip(&sums) {
                for (q, sums) in (q..).zip(sums) {
                    put(q, tile, sums);
                }
            }
        }
        for (tile, keys) in tiles.iter().flatten().enumerate() {
            let mut q = fours.len() * 4;
            let (twos, one) = rest.as_chunks::<2>();
            for two in twos {
                let mut sums = [[0.0; TILE_ROWS]; 2];
                (dots.two)([keys], *two, [&mut sums]);
                put(q, tile, &sums[0]);
                put(q + 1, tile, &sums[1]);
                q += 2;
            }
            for query in one {
                let mut sums = [[0.0; TILE_ROWS]];
                (dots.one)([keys], [query], [&mut sums]);
                put(q, tile, &sums[0]);
            }
        }
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
        BUFFERS.with_borrow_mut(
            |Buffers {
                 values: decoded, ..
             }| {
                decoded.resize(BLOCK_KEYS * d_value, 0.0);
                for (first, bytes) in (0..)
                    .step_by(BLOCK_KEYS)
                    .zip(values.bytes.chunks(BLOCK_KEYS * row_bytes))
                {
                    let n = bytes.len() / row_bytes;
                    let decoded = &mut decoded[..n * d_value];
                    self.decode(values.format, bytes, decoded);
                    let of = |q: usize| &weights[q * stride + first..][..n];
                    let mut q = 0;
                    let mut fours = out.chunks_exact_mut(4 * d_value);
                    for four in &mut fours {
                        let weights = [of(q), of(q + 1), of(q + 2), of(q + 3)];
                        (self.weigh_four)(decoded, d_value, weights, four);
                        q += 4;
                    }
                    for one in fours.into_remainder().chunks_exact_mut(d_value) {
                        (self.weigh_one)(decoded, d_value, [of(q)], one);
                        q += 1;
                    }
                }
            },
        );
    }
}
