//! The two products of attention, over keys that are kept in tiles of eight and values that are kept in rows.
//!
//! A tile of keys is `[d_key, 8]`: lane `r` is key `8 t + r`, as lane `r` of a matrix's tile is a row.  Several queries share
//! what is loaded; the sums of a query depend on nothing but that query, in the order that `arch/scalar` says, so it does
//! not matter which queries are worked out together.  What is masked, and the softmax between the two, is the caller's.

use crate::arch::Kernels;
use crate::tile::TILE_ROWS;

/// Keys whose values meet all queries before the next ones do: few enough to stay in a first-level cache with their
/// values.
const BLOCK_KEYS: usize = 32;

impl Kernels {
    /// `out[q, j] = sum_d query[q, d] * key[j, d]` for all keys of the tiles, `out` being `[n_queries, stride]`.
    ///
    /// # Panics
    ///
    /// If `keys` is not whole tiles of `d_key`, a query has another width, or `out` has no room for a score of every key.
    pub fn scores(
        &self,
        keys: &[[f32; TILE_ROWS]],
        d_key: usize,
        queries: &[&[f32]],
        out: &mut [f32],
        stride: usize,
    ) {
        assert!(keys.len().is_multiple_of(d_key), "whole tiles of keys");
        assert!(queries.iter().all(|q| q.len() == d_key), "width of queries");
        assert!(
            keys.len() / d_key * TILE_ROWS <= stride && out.len() >= queries.len() * stride,
            "room for the scores"
        );
        let dots = self.float_dots();
        let mut put = |query: usize, tile: usize, sums: &[f32; TILE_ROWS]| {
            out[query * stride + tile * TILE_ROWS..][..TILE_ROWS].copy_from_slice(sums);
        };
        let (fours, rest) = queries.as_chunks::<4>();
        for (tile, pair) in (0..).step_by(2).zip(keys.chunks(2 * d_key)) {
            let (first, second) = pair.split_at(d_key);
            for (q, four) in (0..).step_by(4).zip(fours) {
                let (mut a, mut b) = ([[0.0; TILE_ROWS]; 4], [[0.0; TILE_ROWS]; 4]);
                match second.is_empty() {
                    true => (dots.four)([first], *four, [&mut a]),
                    false => (dots.pair)([first, second], *four, [&mut a, &mut b]),
                }
                for i in 0..4 {
                    put(q + i, tile, &a[i]);
                    if !second.is_empty() {
                        put(q + i, tile + 1, &b[i]);
                    }
                }
            }
            for (tile, keys) in (tile..).zip(pair.chunks(d_key)) {
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
    }

    /// `out[q, d] = sum_j weight[q, j] * value[j, d]`: `values` is `[n_keys, d_value]`, `weights` `[n_queries, stride]` with a
    /// weight for each key first, `out` `[n_queries, d_value]`.
    ///
    /// # Panics
    ///
    /// If `values` or `out` are not whole rows, or a query has fewer weights than there are keys.
    pub fn weigh(
        &self,
        values: &[f32],
        d_value: usize,
        weights: &[f32],
        stride: usize,
        out: &mut [f32],
    ) {
        let (n_keys, n_queries) = (values.len() / d_value, out.len() / d_value);
        assert!(
            values.len() == n_keys * d_value && out.len() == n_queries * d_value,
            "whole rows of values"
        );
        assert!(
            n_keys <= stride && weights.len() >= n_queries * stride,
            "a weight for every key"
        );
        out.fill(0.0);
        for (first, values) in (0..)
            .step_by(BLOCK_KEYS)
            .zip(values.chunks(BLOCK_KEYS * d_value))
        {
            let n = values.len() / d_value;
            let of = |q: usize| &weights[q * stride + first..][..n];
            let mut q = 0;
            let mut fours = out.chunks_exact_mut(4 * d_value);
            for four in &mut fours {
                (self.weigh_four)(
                    values,
                    d_value,
                    [of(q), of(q + 1), of(q + 2), of(q + 3)],
                    four,
                );
                q += 4;
            }
            for one in fours.into_remainder().chunks_exact_mut(d_value) {
                (self.weigh_one)(values, d_value, [of(q)], one);
                q += 1;
            }
        }
    }
}
