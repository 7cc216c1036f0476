//! Instruction sets and the table of kernels that each of them provides.
//!
//! A set is chosen once, at run time, as a `&'static Kernels` of function pointers; callers check
//! shapes in the safe methods of [`Kernels`], so a pointer in the table may rely on them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod scalar;

use std::sync::OnceLock;

use crate::activations::{AsymmetricBlocks, AsymmetricMut, Blocks, QuantizedMut};
use crate::format::Format;
use crate::tile::TILE_ROWS;

/// An instruction set that has a table of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code; the specification of all others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL) and its VNNI.
    Avx512,
}

impl Isa {
    /// The sets that this CPU can run, the slowest first.
    pub fn available() -> Vec<Self> {
        [Self::Scalar, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|&isa| Kernels::for_isa(isa).is_some())
            .collect()
    }

    /// A short lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512_vnni",
        }
    }
}

/// Bytes that one step of a [`Read`] adds up: two cache lines.
pub(crate) const READ_STEP: usize = 128;

type Decode = fn(Format, &[u8], &mut [f32]);
type Quantize = fn(&[f32], &mut QuantizedMut<'_>);
type QuantizeAsymmetric = fn(&[f32], &mut AsymmetricMut<'_>);
/// Decodes groups of eight blocks of `T` tiles, one entry per column.
type DecodeTiles<const T: usize> = fn(Format, [&[u8]; T], &mut [[[f32; TILE_ROWS]; T]]);
/// As [`TileDot`] for whole tiles of plain values.
type PlainDot<const T: usize, const N: usize> =
    fn(Format, [&[u8]; T], [&[f32]; N], [&mut [[f32; TILE_ROWS]; N]; T]);
/// Reads bytes and returns a sum that depends on each of them; a rest shorter than [`READ_STEP`] is left out.
type Read = fn(&[u8]) -> u64;
type Scale = fn(&[f32], Option<&[f32]>, f32, &mut [f32]);
type LayerNorm = fn(&[f32], &[f32], Option<&[f32]>, f32, &mut [f32]);

/// The 8-bit form of a block of 32 of a tile: vector `c` has inputs `4 c .. 4 c + 4` of each of the eight rows.
pub(crate) type Plane = [[u8; 32]; TILE_ROWS];

/// Dots of `T` tiles with `N` positions: the tiles or some groups of them, their planes where they have been expanded, the
/// positions from there on, and the sums of each position's eight rows of each tile, to which the products are added.
type TileDot<const T: usize, const N: usize> =
    fn([&[u8]; T], [&[Plane]; T], &[Blocks<'_>; N], [&mut [[f32; TILE_ROWS]; N]; T]);

/// As [`TileDot`] for Q8_0 tiles and positions in blocks of 16.
pub(crate) type AsymmetricDot<const T: usize, const N: usize> =
    fn([&[u8]; T], &[AsymmetricBlocks<'_>; N], [&mut [[f32; TILE_ROWS]; N]; T]);

/// As [`TileDot`] for decoded weights, one entry per column.
type FloatDot<const T: usize, const N: usize> =
    fn(&[[[f32; TILE_ROWS]; T]], [&[f32]; N], [&mut [[f32; TILE_ROWS]; N]; T]);

/// Adds rows, each times its weight for each of `N` queries: the rows, their width, the weights, the sums.
type Weigh<const N: usize> = fn(&[f32], usize, [&[f32]; N], &mut [f32]);

/// As [`Weigh`] for rows of stored floats.
type WeighStored<const N: usize> = fn(Format, &[u8], usize, [&[f32]; N], &mut [f32]);

/// [`Weigh`] for one, two and four queries.
#[derive(Clone, Copy)]
pub(crate) struct Weighs {
    pub(crate) one: Weigh<1>,
    pub(crate) two: Weigh<2>,
    pub(crate) four: Weigh<4>,
}

/// [`WeighStored`] for one, two and four queries.
#[derive(Clone, Copy)]
pub(crate) struct StoredWeighs {
    pub(crate) one: WeighStored<1>,
    pub(crate) two: WeighStored<2>,
    pub(crate) four: WeighStored<4>,
}

/// Tiles that a few positions meet abreast, from as many places of a share: the hardware's prefetching follows each place for
/// itself, and so more of memory is under way than from one.
pub(crate) const ABREAST: usize = 2;

/// As [`ABREAST`] of plain values and one position: there one sum for each tile is enough, and every place is read from front to
/// back.
pub(crate) const PLACES: usize = 4;

/// Dots of one tile with one, two and four positions, of several with as many, and of two expanded tiles with four and, where
/// there are registers for the sums, eight, which share the loads of both.
#[derive(Clone, Copy)]
pub(crate) struct TileDots {
    pub(crate) one: TileDot<1, 1>,
    pub(crate) abreast: TileDot<ABREAST, 1>,
    pub(crate) abreast_two: TileDot<ABREAST, 2>,
    pub(crate) abreast_four: TileDot<ABREAST, 4>,
    pub(crate) two: TileDot<1, 2>,
    pub(crate) four: TileDot<1, 4>,
    /// Expands a tile, for many positions.
    pub(crate) expand: fn(&[u8], &mut [Plane]),
    pub(crate) pair: TileDot<2, 4>,
    pub(crate) pair_eight: Option<TileDot<2, 8>>,
}

/// As [`TileDots`] of Q8_0 tiles and positions in blocks of 16, without expanded ones.
#[derive(Clone, Copy)]
pub(crate) struct AsymmetricDots {
    pub(crate) one: AsymmetricDot<1, 1>,
    pub(crate) abreast: AsymmetricDot<ABREAST, 1>,
    pub(crate) two: AsymmetricDot<1, 2>,
    pub(crate) four: AsymmetricDot<1, 4>,
}

/// As [`TileDots`], of whole tiles of plain values.
#[derive(Clone, Copy)]
pub(crate) struct PlainDots {
    pub(crate) one: PlainDot<1, 1>,
    pub(crate) two: PlainDot<1, 2>,
    pub(crate) four: PlainDot<1, 4>,
    pub(crate) abreast: PlainDot<ABREAST, 1>,
    pub(crate) abreast_two: PlainDot<ABREAST, 2>,
    pub(crate) abreast_four: PlainDot<ABREAST, 4>,
    pub(crate) places: PlainDot<PLACES, 1>,
}

/// As [`TileDots`], of decoded weights.
#[derive(Clone, Copy)]
pub(crate) struct FloatDots {
    pub(crate) one: FloatDot<1, 1>,
    pub(crate) two: FloatDot<1, 2>,
    pub(crate) four: FloatDot<1, 4>,
    pub(crate) pair_one: FloatDot<2, 1>,
    pub(crate) pair_two: FloatDot<2, 2>,
    pub(crate) pair: FloatDot<2, 4>,
    pub(crate) pair_eight: Option<FloatDot<2, 8>>,
}

/// The integer dots, by format.
pub(crate) struct IntegerTable {
    pub(crate) q4_0: TileDots,
    pub(crate) q4_1: TileDots,
    pub(crate) q5_0: TileDots,
    pub(crate) q5_1: TileDots,
    pub(crate) q8_0: TileDots,
    pub(crate) iq4_nl: TileDots,
    pub(crate) mxfp4: TileDots,
    pub(crate) q4_k: TileDots,
    pub(crate) q5_k: TileDots,
    pub(crate) q6_k: TileDots,
}

/// The instances of a generic function for the numbers of tiles and positions.
macro_rules! by_positions {
    ($function:path) => {
        $crate::arch::FloatDots {
            one: $function,
            two: $function,
            four: $function,
            pair_one: $function,
            pair_two: $function,
            pair: $function,
            pair_eight: None,
        }
    };
}
use by_positions;

/// The [`TileDots`] of a generic function of dots and a function that expands.
macro_rules! tile_dots {
    ($module:ident, $dots:ident, $expand:ident) => {
        $crate::arch::TileDots {
            one: $module::$dots::<false, 1, 1>,
            abreast: $module::$dots::<false, { $crate::arch::ABREAST }, 1>,
            abreast_two: $module::$dots::<false, { $crate::arch::ABREAST }, 2>,
            abreast_four: $module::$dots::<false, { $crate::arch::ABREAST }, 4>,
            two: $module::$dots::<false, 1, 2>,
            four: $module::$dots::<false, 1, 4>,
            expand: $module::$expand,
            pair: $module::$dots::<true, 2, 4>,
            pair_eight: None,
        }
    };
}
use tile_dots;

/// Fills an [`IntegerTable`] from a module that has two functions per format.
macro_rules! integer_table {
    ($module:ident) => {
        $crate::arch::IntegerTable {
            q4_0: tile_dots!($module, q4_0, expand_q4_0),
            q4_1: tile_dots!($module, q4_1, expand_q4_1),
            q5_0: tile_dots!($module, q5_0, expand_q5_0),
            q5_1: tile_dots!($module, q5_1, expand_q5_1),
            q8_0: tile_dots!($module, q8_0, expand_q8_0),
            iq4_nl: tile_dots!($module, iq4_nl, expand_iq4_nl),
            mxfp4: tile_dots!($module, mxfp4, expand_mxfp4),
            q4_k: tile_dots!($module, q4_k, expand_q4_k),
            q5_k: tile_dots!($module, q5_k, expand_q5_k),
            q6_k: tile_dots!($module, q6_k, expand_q6_k),
        }
    };
}
use integer_table;

/// The kernels of one instruction set.
///
/// All sets compute the same bits; they differ in speed.
pub struct Kernels {
    isa: Isa,
    decode: Decode,
    dot: fn(&[f32], &[f32]) -> f32,
    axpy: fn(f32, &[f32], &mut [f32]),
    exp_in_place: fn(&mut [f32]),
    softmax_in_place: fn(&mut [f32]),
    silu_mul: fn(&mut [f32], &[f32]),
    gelu_tanh_mul: fn(&mut [f32], &[f32]),
    scale: Scale,
    layer_norm: LayerNorm,
    quantize: Quantize,
    quantize_asymmetric: QuantizeAsymmetric,
    integer: IntegerTable,
    pub(crate) asymmetric: AsymmetricDots,
    pub(crate) decode_tile: DecodeTiles<1>,
    pub(crate) decode_pair: DecodeTiles<2>,
    floats: FloatDots,
    pub(crate) plain: PlainDots,
    pub(crate) read: Read,
    pub(crate) weigh: Weighs,
    pub(crate) weigh_stored: StoredWeighs,
}

impl Kernels {
    /// The fastest table that this CPU can run.
    pub fn detect() -> &'static Self {
        static DETECTED: OnceLock<&'static Kernels> = OnceLock::new();
        DETECTED.get_or_init(|| {
            let best = Isa::available().pop().and_then(Self::for_isa);
            best.unwrap_or(&scalar::KERNELS)
        })
    }

    /// The table of `isa`, or `None` when this CPU cannot run it.
    pub fn for_isa(isa: Isa) -> Option<&'static Self> {
        match isa {
            Isa::Scalar => Some(&scalar::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernels(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::kernels(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        }
    }

    /// The instruction set of this table.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Decodes whole blocks of `format` to `f32`, exactly as ggml does.
    ///
    /// # Panics
    ///
    /// If `out.len()` is not a whole number of blocks or `bytes` is not exactly those blocks.
    pub fn decode(&self, format: Format, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            format.row_bytes(out.len()),
            Some(bytes.len()),
            "bytes of {} {format} weights",
            out.len()
        );
        (self.decode)(format, bytes, out);
    }

    /// `sum_i a[i] * b[i]` in f32, in the lane order of this crate: the error is at most
    /// `n * eps * sum |a[i] b[i]|`, and the bits depend on nothing but the two vectors.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn dot_f32(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "lengths of a dot");
        (self.dot)(a, b)
    }

    /// `y[i] += alpha * x[i]` with one rounding each.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn axpy(&self, alpha: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "lengths of axpy");
        (self.axpy)(alpha, x, y);
    }

    /// `x[i] = e^x[i]`, within 2 ulp.
    pub fn exp_in_place(&self, x: &mut [f32]) {
        (self.exp_in_place)(x);
    }

    /// `x[i] = e^(x[i] - max x) / sum_j e^(x[j] - max x)`.
    ///
    /// An entry of negative infinity becomes 0; when all are, or one is NaN, every entry is NaN.
    pub fn softmax_in_place(&self, x: &mut [f32]) {
        (self.softmax_in_place)(x);
    }

    /// `gate[i] = silu(gate[i]) * up[i]` with `silu(g) = g / (1 + e^-g)`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        (self.silu_mul)(gate, up);
    }

    /// `gate[i] = gelu(gate[i]) * up[i]` with the tanh form of GELU.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn gelu_tanh_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        (self.gelu_tanh_mul)(gate, up);
    }

    /// `out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]`; the squares are summed as
    /// [`Self::dot_f32`] sums them.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "lengths of an RMS norm");
        assert!(
            weight.is_none_or(|w| w.len() == x.len()),
            "length of norm weight"
        );
        let mean = (self.dot)(x, x) / x.len() as f32;
        (self.scale)(x, weight, 1.0 / (mean + eps).sqrt(), out);
    }

    /// `out[i] = (x[i] - mean) / sqrt(var + eps) * weight[i] + bias[i]`, with the biased variance.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        eps: f32,
        out: &mut [f32],
    ) {
        assert_eq!(x.len(), out.len(), "lengths of a layer norm");
        assert_eq!(x.len(), weight.len(), "length of norm weight");
        assert!(
            bias.is_none_or(|b| b.len() == x.len()),
            "length of norm bias"
        );
        (self.layer_norm)(x, weight, bias, eps, out);
    }

    /// The integer dots of `format`, if it has them.
    pub(crate) fn integer_dots(&self, format: Format) -> Option<TileDots> {
        let table = &self.integer;
        match format {
            Format::Q4_0 => Some(table.q4_0),
            Format::Q4_1 => Some(table.q4_1),
            Format::Q5_0 => Some(table.q5_0),
            Format::Q5_1 => Some(table.q5_1),
            Format::Q8_0 => Some(table.q8_0),
            Format::Iq4Nl => Some(table.iq4_nl),
            Format::Mxfp4 => Some(table.mxfp4),
            Format::Q4K => Some(table.q4_k),
            Format::Q5K => Some(table.q5_k),
            Format::Q6K => Some(table.q6_k),
            Format::F32
            | Format::F16
            | Format::Bf16
            | Format::Q2K
            | Format::Q3K
            | Format::Iq4Xs => None,
        }
    }

    /// The dots of decoded tiles.
    pub(crate) fn float_dots(&self) -> FloatDots {
        self.floats
    }

    /// Quantizes whole blocks of 32.
    pub(crate) fn quantize(&self, x: &[f32], out: &mut QuantizedMut<'_>) {
        assert_eq!(x.len(), out.quants.len());
        assert_eq!(x.len(), out.scales.len() * 32);
        assert_eq!(x.len(), out.sums.len() * 32);
        assert_eq!(x.len(), out.halves.len() * 16);
        assert_eq!(x.len(), out.scaled_sums.len() * 32);
        (self.quantize)(x, out);
    }

    /// Quantizes whole blocks of 16 about their middles.
    pub(crate) fn quantize_asymmetric(&self, x: &[f32], out: &mut AsymmetricMut<'_>) {
        assert_eq!(x.len(), out.quants.len());
        assert_eq!(x.len(), out.scales.len() * 16);
        assert_eq!(x.len(), out.middles.len() * 16);
        (self.quantize_asymmetric)(x, out);
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels")
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}
