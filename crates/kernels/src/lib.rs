//! Block formats, CPU functions over slices of them, and the thread team.
//!
//! Three things live here and nothing else: what the bytes of a stored weight row mean
//! ([`Format`], [`decode`]), how rows meet activations fast ([`linear`]), and the threads that do
//! it ([`Team`]).  Files, models and shapes of layers are unknown to this crate.
//!
//! Conventions: matrices are row-major, `[out, in]`, the last axis contiguous; several positions
//! are `[n_pos, width]`.  Sizes are checked by `assert!` before any kernel runs.
//!
//! **Same bits.** A result for one row and one position is the same bits for any number of threads,
//! positions, and neighbours, and for every instruction set: all of them follow one order of
//! operations, written down as plain loops in `arch/scalar`.
//!
//! ```
//! use larql_kernels::{
//!     Activations, Arithmetic, Format, Kernels, LinearJob, MatrixView, RowOrder, Team, TileView,
//!     linear, pack_tiles,
//! };
//!
//! let weight: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]
//!     .iter()
//!     .flat_map(|w| w.to_le_bytes())
//!     .collect();
//! let weight = MatrixView::new(Format::F32, 2, 3, &weight)?;
//! let kernels = Kernels::detect();
//! let mut team = Team::new(Team::default_threads());
//! // Two rows make one tile, which is filled up to eight.
//! let mut tiles = [0; 8 * 3 * 4];
//! pack_tiles(&mut team, weight, RowOrder::Stored, &mut tiles);
//! let mut x = Activations::new();
//! let forms = Arithmetic::Exact.forms(3, [Format::F32]);
//! x.prepare(&mut team, kernels, &[1.0, 0.0, -1.0], 1, forms);
//! let mut out = [0.0; 2];
//! let weight = TileView::new(Format::F32, 2, 3, &tiles)?;
//! let job = LinearJob { weight, out: &mut out };
//! linear(&mut team, kernels, &x, &mut [job]);
//! assert_eq!(out, [-2.0, -2.0]);
//! # Ok::<(), larql_kernels::ShapeError>(())
//! ```

mod activations;
mod arch;
mod attention;
mod encode;
mod format;
mod half;
mod linear;
mod matrix;
mod probe;
mod team;
mod tile;

pub use activations::{Activations, Arithmetic, Form, Forms};
pub use arch::{Isa, Kernels};
pub use attention::KeptRows;
pub use encode::{EncodeError, encode, f32_to_bf16, f32_to_f16, has_encoder};
pub use format::Format;
pub use half::{bf16_to_f32, f16_to_f32};
pub use linear::{LinearJob, linear};
pub use matrix::{MatrixView, ShapeError, decode, decode_column, decode_row};
pub use probe::{cache_bandwidth_gb_s, multiply_rate_gmac_s, read_bandwidth_gb_s};
pub use team::{RowOrder, Team};
pub use tile::{TILE_ROWS, TileView, pack_tiles, pack_tiles_releasing, tile_bytes};
