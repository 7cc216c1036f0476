//! Matrix products: several matrices of tiled weights times the same activations, in one dispatch.
//!
//! The tiles of all jobs are laid end to end and split over the team by bytes, because reading the weights is what costs.
//! With a few positions tiles of several places are read at once ([`few`]); in which order many meet the tiles, [`panels`]
//! says.  The sum of a row and a position is computed by one thread in one fixed order, so neither the split nor the number of
//! positions can change a bit of it.

pub(crate) mod few;
pub(crate) mod panels;

use std::cell::Cell;
use std::ops::Range;

use crate::activations::{Activations, Form, emptied};
use crate::arch::Kernels;
use crate::team::{Team, TileWriter};
use crate::tile::TileView;

/// Below this many weight bytes times positions a dispatch costs more than it saves.
const SERIAL_WORK_MAX: usize = 16 * 1024;

/// Most pieces per thread: a thread whose core is slower, or another program's for a while, leaves some of its own to others.
const PIECES_MAX: usize = 8;

/// Weight bytes times positions of a piece at least: the reading of memory gets up to speed anew in each.
const PIECE_WORK_MIN: usize = 256 * 1024;

/// From so many positions on it pays to expand tiles, and to keep what several of them need in a cache.
const BLOCKS_MIN: usize = 8;

/// One output of a fused dispatch: `out[p * rows + r] = sum_k weight[r, k] * x[p, k]`.
#[derive(Debug)]
pub struct LinearJob<'a> {
    /// `[rows, cols]`.
    pub weight: TileView<'a>,
    /// `[n_pos, rows]`.
    pub out: &'a mut [f32],
}

/// The tiles of one job in one piece.
struct Share<'a> {
    piece: usize,
    weight: TileView<'a>,
    tiles: Range<usize>,
    writer: TileWriter<'a>,
}

/// Who computes what in a dispatch: empty between calls, kept because a decode step makes hundreds of them.
#[derive(Default)]
struct Lists {
    shares: Vec<Share<'static>>,
    /// The shares of each piece.
    by_piece: Vec<&'static mut [Share<'static>]>,
}

thread_local! {
    static LISTS: Cell<Lists> = const {
        Cell::new(Lists {
            shares: Vec::new(),
            by_piece: Vec::new(),
        })
    };
}

/// Computes all jobs over the activations `x`.
///
/// The arithmetic for which the activations were prepared says in which [`Form`] they meet each matrix.  Returns in how many
/// pieces the work was done.
///
/// # Panics
///
/// If a weight's columns differ from the activations', or an output has another size than `n_pos * rows`.
pub fn linear(
    team: &mut Team,
    kernels: &Kernels,
    x: &Activations,
    jobs: &mut [LinearJob<'_>],
) -> usize {
    let mut work_bytes = 0usize;
    for job in &*jobs {
        assert_eq!(
            job.weight.cols(),
            x.cols(),
            "columns of weights and activations"
        );
        work_bytes = work_bytes.saturating_add(job.weight.bytes().len());
    }
    let work = work_bytes.saturating_mul(x.n_pos());
    let n_pieces = match (work, team.n_threads()) {
        (0..=SERIAL_WORK_MAX, _) | (_, 1) => 1,
        (_, n) => n * (work / n / PIECE_WORK_MIN).clamp(1, PIECES_MAX),
    };
    let Lists { shares, by_piece } = LISTS.take();
    let mut shares = emptied(shares);
    split(jobs, x.n_pos(), work_bytes, n_pieces, &mut shares);
    let mut by_piece = emptied(by_piece);
    by_piece.extend(shares.chunk_by_mut(|a, b| a.piece == b.piece));
    let n_pieces = by_piece.len();
    team.chunks_mut(&mut by_piece, 1, |_, shares| {
        for share in shares.iter_mut().flat_map(|shares| shares.iter_mut()) {
            compute(kernels, x, share);
        }
    });
    LISTS.set(Lists {
        by_piece: emptied(by_piece),
        shares: emptied(shares),
    });
    n_pieces
}

/// Gives every piece a contiguous run of tiles of about the same number of bytes; the shares are in the order of pieces.
fn split<'a>(
    jobs: &'a mut [LinearJob<'_>],
    n_pos: usize,
    work_bytes: usize,
    n_pieces: usize,
    shares: &mut Vec<Share<'a>>,
) {
    let end_of = |piece: usize| crate::team::share(work_bytes, piece, n_pieces).end;
    let (mut piece, mut at) = (0, 0);
    for job in jobs {
        let weight = job.weight;
        let mut rest = TileWriter::new(job.out, n_pos, weight.rows());
        let tile_len = weight.tile_len();
        let mut next = 0;
        while next < weight.n_tiles() {
            while piece + 1 < n_pieces && at >= end_of(piece) {
                piece += 1;
            }
            let room = if piece + 1 == n_pieces || tile_len == 0 {
                usize::MAX
            } else {
                (end_of(piece) - at).div_ceil(tile_len)
            };
            let n_tiles = (weight.n_tiles() - next).min(room);
            let tiles = next..next + n_tiles;
            shares.push(Share {
                piece,
                weight,
                writer: rest.split_before(tiles.end),
                tiles,
            });
            next += n_tiles;
            at += n_tiles * tile_len;
        }
    }
}

fn compute(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    let format = share.weight.format();
    match x.form(format) {
        Form::Blocks => {
            let dots = kernels.integer_dots(format);
            let dots = dots.expect("this form is of formats that have them");
            match x.n_pos() {
                0..BLOCKS_MIN => few::integers(dots, x, share),
                _ => panels::integers(dots, x, share),
            }
        }
        Form::Asymmetric if x.n_pos() == 1 => few::asymmetric(kernels.asymmetric, x, share),
        Form::Asymmetric => panels::asymmetric(kernels.asymmetric, x, share),
        Form::Floats if x.n_pos() < BLOCKS_MIN && format.block_len() == 1 => {
            few::plain(kernels.plain, x, share);
        }
        Form::Floats => panels::floats(kernels, x, share),
    }
}
